"""Every communicator gives the naive reference's results, bit for bit (real processes: tests/distributed)."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from splash_core.dist.comm import Comm
from splash_core.dist.inprocess import run_ranks
from tests.support.comm_cases import Script, assert_matches, run_script, scripts
from tests.support.shm_threads import run_on_shm


def _run_in_process(script: Script) -> list[list[Tensor]]:
    return run_ranks(script.num_ranks, lambda comms: run_script(comms.compute, script))


def _run_on_shm(script: Script) -> list[list[Tensor]]:
    def program(comm: Comm) -> list[Tensor]:
        return run_script(comm, script)

    return run_on_shm(script.num_ranks, program)


RUNNERS = {"inprocess": _run_in_process, "shm": _run_on_shm}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", RUNNERS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_programs_match_the_reference(backend: str, num_ranks: int, data: st.DataObject) -> None:
    script = data.draw(scripts(num_ranks))
    assert_matches(script, RUNNERS[backend](script))


@pytest.mark.parametrize("backend", RUNNERS)
def test_results_do_not_alias_what_others_can_write(backend: str) -> None:
    def program(comm: Comm) -> Tensor:
        mine_NX = torch.full((2, 3), float(comm.rank))
        gathered_NX = comm.all_gather_rows(mine_NX, [2, 2], tag="gather")
        mine_NX.fill_(-1)
        gathered_NX[0] += 0
        comm.barrier()
        return gathered_NX

    if backend == "shm":
        results = run_on_shm(2, program)
    else:
        results = run_ranks(2, lambda comms: program(comms.compute))
    for gathered_NX in results:
        assert gathered_NX[:, 0].tolist() == [0, 0, 1, 1]
    results[0].fill_(9)
    assert results[1].max() == 1


@pytest.mark.parametrize("backend", RUNNERS)
def test_a_sum_is_taken_in_rank_order(backend: str) -> None:
    values = [1e16, 1.0, -1e16]

    def program(comm: Comm) -> float:
        x_N = torch.full((3,), values[comm.rank], dtype=torch.float64)
        return comm.reduce_scatter_rows(x_N, [1, 1, 1], tag="sum").item()

    if backend == "shm":
        results = run_on_shm(3, program)
    else:
        results = run_ranks(3, lambda comms: program(comms.compute))
    assert results == [(1e16 + 1.0) - 1e16] * 3


@pytest.mark.parametrize("backend", RUNNERS)
def test_bad_arguments_are_refused_before_anything_moves(backend: str) -> None:
    def program(comm: Comm) -> None:
        with pytest.raises(ValueError, match="announce 2 rows"):
            comm.all_gather_rows(torch.zeros(3, 2), [2, 3], tag="gather")
        with pytest.raises(ValueError, match="one per rank"):
            comm.reduce_scatter_rows(torch.zeros(3, 2), [3], tag="reduce")
        with pytest.raises(ValueError, match="contiguous"):
            comm.all_to_all_rows(torch.zeros(4, 2).t(), [1, 1], [1, 1], tag="trade")

    if backend == "shm":
        run_on_shm(2, lambda comm: program(comm) if comm.rank == 0 else None)
    else:
        run_ranks(2, lambda comms: program(comms.compute) if comms.compute.rank == 0 else None)
