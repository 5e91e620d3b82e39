"""What `NcclComm` asks of torch.distributed, checked on CPU: the same class over a gloo group.

gloo lacks two things, which stand in here: `all_to_all` of lists, and CUDA's streams.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from splash_core.dist import nccl
from splash_core.dist.comm import RankComms, Transfer
from splash_core.dist.gloo import GlooComm
from splash_core.dist.launch import Backend
from splash_core.dist.nccl import NcclComm
from splash_core.errors import GroupFailed, InvariantBroken
from splash_core.ids import RankId
from tests.distributed.harness import RankPool
from tests.support.comm_cases import Script, assert_matches, run_script, scripts

CPU = torch.device("cpu")


class OnGloo(NcclComm):
    """`NcclComm`, but for what needs a GPU."""

    @override
    def barrier(self) -> None:
        dist.barrier(group=self._group)

    @override
    def close(self) -> None:
        self._closed = True


def on_gloo(comms: RankComms, asked: list[str] | None = None) -> OnGloo:
    """A communicator over the rank's gloo group; `asked` collects the names of torch's collectives."""
    torch.cuda.is_current_stream_capturing = lambda: False

    def note(name: str, function: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            if asked is not None:
                asked.append(name)
            return function(*args, **kwargs)

        return noted

    class Torch:
        """torch.distributed as `nccl` sees it."""

        def __getattr__(self, name: str) -> Any:
            function = _all_to_all_of_lists if name == "all_to_all" else getattr(dist, name)
            collectives = (
                "all_gather_into_tensor",
                "all_to_all",
                "all_to_all_single",
                "reduce_scatter_tensor",
            )
            return note(name, function) if name in collectives else function

    nccl.dist = Torch()  # type: ignore[assignment]
    assert isinstance(comms.compute, GlooComm)
    return OnGloo(comms.compute._group, CPU)


def _all_to_all_of_lists(outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: Any) -> None:
    received = torch.empty(sum(map(len, outputs)), dtype=outputs[0].dtype)
    dist.all_to_all_single(
        received, torch.cat(list(inputs)), list(map(len, outputs)), list(map(len, inputs)), group=group
    )
    for place, part in zip(outputs, received.split(list(map(len, outputs))), strict=True):
        place.copy_(part)


@pytest.fixture(scope="module", params=[2, 3])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with RankPool(request.param, tmp_path_factory.mktemp("ranks"), backend=Backend.GLOO) as ranks:
        yield ranks


def run(comms: RankComms, script: Script) -> list[Tensor]:
    return run_script(on_gloo(comms), script)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_programs_match_the_reference(pool: RankPool, data: st.DataObject) -> None:
    script = data.draw(scripts(len(pool.pids), max_calls=5))
    assert_matches(script, pool.run(run, script), exact_sums=False)


def paths(comms: RankComms) -> dict[str, list[str]]:
    """Which of torch's collectives each kind of call takes."""
    asked: list[str] = []
    comm = on_gloo(comms, asked)
    rows, size = torch.ones(2, 3), comm.size
    seen: dict[str, list[str]] = {}

    def call(name: str, function: Any, *args: Any) -> None:
        asked.clear()
        function(*args, tag=name)
        seen[name] = list(asked)

    uneven = [2] * size
    uneven[-1] = 0
    mine = 0 if comm.rank == size - 1 else 2
    call("even gather", comm.all_gather_rows, rows, [2] * size)
    call("uneven gather", comm.all_gather_rows, rows[:mine], uneven)
    call("empty gather", comm.all_gather_rows, rows[:0], [0] * size)
    call("even sum", comm.reduce_scatter_rows, torch.ones(2 * size, 3), [2] * size)
    call("uneven sum", comm.reduce_scatter_rows, torch.ones(sum(uneven), 3), uneven)
    call("trade", comm.all_to_all_rows, torch.ones(size, 3), [1] * size, [1] * size)
    call("empty trade", comm.all_to_all_rows, rows[:0], [0] * size, [0] * size)
    call("no exchange", comm.exchange, [], [])
    return seen


def test_equal_counts_take_the_fast_paths_and_no_rank_leaves_a_row_collective_out(pool: RankPool) -> None:
    answers = pool.run(paths)
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] == {
        "even gather": ["all_gather_into_tensor"],
        "uneven gather": ["all_to_all"],
        "empty gather": [],
        "even sum": ["reduce_scatter_tensor"],
        "uneven sum": ["all_to_all_single"],
        "trade": ["all_to_all_single"],
        "empty trade": ["all_to_all_single"],
        "no exchange": [],
    }


def errors(comms: RankComms) -> None:
    comm = on_gloo(comms)
    with pytest.raises(ValueError, match="announce 2 rows"):
        comm.all_gather_rows(torch.zeros(3, 2), [2] * comm.size, tag="gather")
    with (
        pytest.raises(GroupFailed, match=rf"rank {comm.rank} in trade: a peer ended or is late"),
        comm._enqueue("trade"),
    ):
        raise RuntimeError("NCCL error")
    landed = torch.zeros(3)
    comm.exchange([Transfer(comm.rank, torch.ones(3))], [Transfer(comm.rank, landed)], tag="self")
    assert landed.tolist() == [1, 1, 1]
    comm.close()
    with pytest.raises(InvariantBroken, match="closed"):
        comm.exchange([], [], tag="late")


def test_errors_and_exchanges_with_oneself(pool: RankPool) -> None:
    pool.run(errors)


def test_one_rank_needs_no_group(tmp_path: Any) -> None:
    with RankPool(1, tmp_path, backend=Backend.GLOO) as ranks:
        assert ranks.run(alone) == [True]


def alone(comms: RankComms) -> bool:
    comm, x_NX = on_gloo(comms), torch.ones(3, 2)
    return (
        comm.all_gather_rows(x_NX, [3], tag="gather") is x_NX
        and comm.all_to_all_rows(x_NX, [3], [3], tag="trade") is x_NX
        and comm.reduce_scatter_rows(x_NX, [3], tag="sum") is x_NX
        and comm.rank == RankId(0)
    )


@pytest.mark.parametrize(
    ("used", "num_ranks", "limit"),
    [(16, 1, 16), (16, 2, 32), (8, 2, 16), (1, 2, 2), (12, 2, 16), (16, 4, 16), (24, 4, 32), (16, 8, 16)],
)
def test_exchanges_take_the_thread_blocks_that_were_asked_for(used: int, num_ranks: int, limit: int) -> None:
    """Of two ranks NCCL gives each half: so twice as many are allowed as are to be used."""
    assert nccl.blocks_to_allow(used, num_ranks) == limit


@given(used=st.integers(1, 64), num_ranks=st.integers(2, 16))
def test_no_exchange_takes_more_thread_blocks_than_asked_for(used: int, num_ranks: int) -> None:
    limit = nccl.blocks_to_allow(used, num_ranks)
    share = 1
    while 2 * share * num_ranks <= limit:
        share *= 2
    assert min(limit, share * (num_ranks - 1)) <= used
    assert limit & (limit - 1) == 0
