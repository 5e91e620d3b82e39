"""The one-shot communicator on threads that read each other's memory."""

import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.dist.oneshot import OneShotComm
from tests.support.comm_cases import assert_matches, evened, run_script, scripts
from tests.support.thread_memory import ThreadMemory


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_programs_match_the_reference(num_ranks: int, data: st.DataObject) -> None:
    script = evened(data.draw(scripts(num_ranks)))
    # Small enough that some calls do not fit, and go to the other communicator.
    memory = ThreadMemory(num_ranks, 256)

    def program(comms: RankComms) -> list[Tensor]:
        return run_script(OneShotComm(comms.compute, memory), script)

    assert_matches(script, run_ranks(num_ranks, program))


def test_a_settled_sequence_may_be_repeated_while_a_rank_lags() -> None:
    memory = ThreadMemory(2, 1024)

    def program(comms: RankComms) -> list[float]:
        comm = OneShotComm(comms.compute, memory)
        sums: list[float] = []
        for turn in range(40):
            for call in range(3):
                x_NX = torch.full((2, 4), float(100 * turn + 10 * call + comm.rank))
                if comm.rank == turn % 2:
                    threading.Event().wait(0.001)
                sums.append(float(comm.all_gather_rows(x_NX, [2, 2], tag="t").sum()))
            comm.settle()
        return sums

    expected = [8.0 * (200 * turn + 20 * call + 1) for turn in range(40) for call in range(3)]
    assert run_ranks(2, program) == [expected, expected]
    # Three calls leave the halves as they were only with one barrier more.
    assert memory.passed == 40 * 4


def test_messages_larger_than_half_the_memory_take_the_other_way() -> None:
    memory = ThreadMemory(2, 64)

    def program(comms: RankComms) -> Tensor:
        comm = OneShotComm(comms.compute, memory)
        return comm.reduce_scatter_rows(torch.ones(4, 8), [2, 2], tag="t")

    assert all(bool((part == 2).all()) for part in run_ranks(2, program))
    assert memory.passed == 0
