"""NCCL communicators on real GPUs, T = all of them: results, streams, graphs, memory and the end.

Run with `python -m pytest -m gpu tests/gpu/test_nccl.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from splash_core.dist.comm import Comm, RankComms, Transfer
from splash_core.dist.launch import Backend, rank_comms
from splash_core.dist.nccl import NcclComm
from splash_core.errors import InvariantBroken
from splash_core.ids import RankId
from tests.distributed.harness import RankPool
from tests.support.comm_cases import Script, assert_matches, evened, run_script, scripts
from tests.support.gpus import NUM_GPUS, gpu_launch, run_to_the_end

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

MIB = 1 << 20


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    assert NUM_GPUS > 0, "torch sees no GPU"
    folder = tmp_path_factory.mktemp("ranks")
    with RankPool(NUM_GPUS, folder, backend=Backend.AUTO, device="cuda") as ranks:
        yield ranks


# -------------------------------------------------------------------------------------- results


def which(comms: RankComms) -> tuple[str, str, str]:
    return type(comms.compute).__name__, type(comms.transfer).__name__, str(comms.device)


def test_auto_is_nccl_on_gpus(pool: RankPool) -> None:
    name = NcclComm.__name__
    assert pool.run(which) == [(name, name, f"cuda:{rank}") for rank in range(NUM_GPUS)]


def on_both(comms: RankComms, script: Script) -> tuple[list[Tensor], list[Tensor]]:
    return (
        run_script(comms.compute, script, comms.device),
        run_script(comms.transfer, script, comms.device),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_programs_match_the_reference(pool: RankPool, data: st.DataObject) -> None:
    # All element types (bf16 and bytes among them), uneven and empty counts, rows without columns.
    script = data.draw(scripts(NUM_GPUS, max_calls=6))
    answers = pool.run(on_both, script)
    for comm in range(2):
        assert_matches(script, [answer[comm] for answer in answers], exact_sums=False)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_large_programs_match_the_reference(pool: RankPool, data: st.DataObject) -> None:
    script = data.draw(scripts(NUM_GPUS, max_calls=3, big_rows=400_000))
    answers = pool.run(on_both, script)
    for comm in range(2):
        assert_matches(script, [answer[comm] for answer in answers], exact_sums=False)


def on_small(comms: RankComms, script: Script) -> list[Tensor]:
    # One rank has no peer to read from; GPUs of one host read each other's memory.
    assert (comms.small is None) == (comms.compute.size == 1)
    return run_script(comms.recorded, script, comms.device)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_small_programs_match_the_reference(pool: RankPool, data: st.DataObject) -> None:
    script = evened(data.draw(scripts(NUM_GPUS, max_calls=6)))
    assert_matches(script, pool.run(on_small, script), exact_sums=False)


def same_sum_twice(comms: RankComms) -> bool:
    """Whether a sum has the same bits each time: what the docstring of `Comm` promises."""
    generator = torch.Generator(device=comms.device).manual_seed(int(comms.compute.rank))
    size, equal = comms.compute.size, True
    for dtype in (torch.bfloat16, torch.float32):
        x_NX = torch.randn(64 * size, 7168, generator=generator, device=comms.device, dtype=dtype)
        sums = [comms.compute.reduce_scatter_rows(x_NX, [64] * size, tag="sum") for _ in range(5)]
        equal = equal and all(torch.equal(sums[0], again) for again in sums[1:])
    return equal


def test_a_sum_has_the_same_bits_each_time(pool: RankPool) -> None:
    assert pool.run(same_sum_twice) == [True] * NUM_GPUS


# -------------------------------------------------------------------------------------- streams

Call = Callable[[Comm, Tensor], Tensor]


def _gather(comm: Comm, x_NX: Tensor) -> Tensor:
    return comm.all_gather_rows(x_NX, [len(x_NX)] * comm.size, tag="gather")


def _uneven_gather(comm: Comm, x_NX: Tensor) -> Tensor:
    counts = [len(x_NX)] * comm.size
    counts[0] = 3
    return comm.all_gather_rows(x_NX[: counts[comm.rank]], counts, tag="uneven")


def _trade(comm: Comm, x_NX: Tensor) -> Tensor:
    each = len(x_NX) // comm.size
    rows_NX = x_NX[: each * comm.size]
    return comm.all_to_all_rows(rows_NX, [each] * comm.size, [each] * comm.size, tag="trade")


def _sum(comm: Comm, x_NX: Tensor) -> Tensor:
    return comm.reduce_scatter_rows(x_NX.repeat(comm.size, 1), [len(x_NX)] * comm.size, tag="sum")


def _exchange(comm: Comm, x_NX: Tensor) -> Tensor:
    after, before = (RankId((comm.rank + step) % comm.size) for step in (1, -1))
    landed_NX = torch.empty_like(x_NX)
    half = len(x_NX) // 2
    comm.exchange(
        [Transfer(after, x_NX[:half]), Transfer(after, x_NX[half:])],
        [Transfer(before, landed_NX[:half]), Transfer(before, landed_NX[half:])],
        tag="exchange",
    )
    return landed_NX


CALLS: dict[str, Call] = {
    "gather": _gather,
    "uneven gather": _uneven_gather,
    "trade": _trade,
    "sum": _sum,
    "exchange": _exchange,
}


def _values(name: str, rank: int, size: int) -> set[float]:
    """What a call over rows of `rank + 1` yields on `rank`."""
    if name == "exchange":
        return {float((rank - 1) % size + 1)}
    if name == "sum":
        return {size * (size + 1) / 2}
    return {float(other + 1) for other in range(size)}


def on_a_busy_stream(comms: RankComms, name: str) -> str:
    """A call whose rows a busy stream has yet to write; empty if it took them and the host did not wait."""
    comm, call = comms.transfer, CALLS[name]
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    x_NX = torch.zeros(64, 1024, device=comms.device)
    torch.cuda.synchronize()
    for cycles in (1, 1_000_000_000):  # the first round loads code and memory, which waits; the second: 0.5 s
        comm.barrier()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)
            x_NX.fill_(comm.rank + 1)
            result_NX = call(comm, x_NX)
            if comm.size > 1:
                x_NX.fill_(-1.0)
            seen = result_NX + 0
            done.record()
        waited = done.query()
        stream.synchronize()
    if waited:
        return "the host waited for the stream"
    got = set(seen.flatten().tolist())
    expected = _values(name, int(comm.rank), comm.size)
    return "" if got == expected else f"got {got}, expected {expected}"


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_ordered_with_the_current_stream_and_return_at_once(pool: RankPool, name: str) -> None:
    assert pool.run(on_a_busy_stream, name) == [""] * NUM_GPUS


def both_at_once(comms: RankComms) -> int:
    """Large exchanges on a stream of their own beside steps of GEMMs and collectives; wrong elements."""
    device, size, rank = comms.device, comms.compute.size, int(comms.compute.rank)
    side = torch.cuda.Stream()
    peer, source = RankId((rank + 1) % size), RankId((rank - 1) % size)
    sent = torch.full((64 * MIB,), rank + 1, dtype=torch.uint8, device=device)
    landed = [torch.zeros_like(sent) for _ in range(4)]
    weights = torch.eye(2048, device=device)
    rows_NX = torch.full((256, 2048), float(rank), device=device)
    side.wait_stream(torch.cuda.current_stream())
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for landing in landed:
        with torch.cuda.stream(side):
            comms.transfer.exchange([Transfer(peer, sent)], [Transfer(source, landing)], tag="move")
        for _ in range(10):
            gathered_NX = comms.compute.all_gather_rows(rows_NX @ weights, [256] * size, tag="step")
            wrong += (gathered_NX.view(size, -1).mean(dim=1) != torch.arange(size, device=device)).sum()
    torch.cuda.current_stream().wait_stream(side)
    return int(wrong) + sum(int((landing != source + 1).sum()) for landing in landed)


def test_transfers_run_beside_steps(pool: RankPool) -> None:
    assert pool.run(both_at_once) == [0] * NUM_GPUS


def memory_growth(comms: RankComms) -> dict[str, int]:
    """MiB that each call takes beyond its first rounds, when the host runs far ahead of the GPU."""
    comm, growth = comms.transfer, {}
    x_NX = torch.zeros(4096, 1024, device=comms.device)
    for name, call in CALLS.items():
        if name == "exchange":
            continue  # its buffers are the caller's, and are to be kept: see `engine/staging.py`
        for _ in range(3):
            call(comm, x_NX)
        torch.cuda.synchronize()
        before = torch.cuda.memory_reserved()
        torch.cuda._sleep(400_000_000)
        for _ in range(40):
            call(comm, x_NX)
        growth[name] = (torch.cuda.memory_reserved() - before) // MIB
        torch.cuda.synchronize()
    kept_NX = torch.empty_like(x_NX)
    comm.barrier()
    before = torch.cuda.memory_reserved()
    torch.cuda._sleep(400_000_000)
    after, source = (RankId((comm.rank + step) % comm.size) for step in (1, -1))
    for _ in range(40):
        comm.exchange([Transfer(after, x_NX)], [Transfer(source, kept_NX)], tag="exchange")
    growth["exchange of kept buffers"] = (torch.cuda.memory_reserved() - before) // MIB
    torch.cuda.synchronize()
    return growth


def test_a_host_that_runs_ahead_takes_no_more_memory(pool: RankPool) -> None:
    for growth in pool.run(memory_growth):
        assert max(growth.values()) <= 64, f"MiB beyond the first rounds: {growth}"


# --------------------------------------------------------------------------------------- graphs


def replays(comms: RankComms, names: Sequence[str]) -> str:
    """Capture calls, replay with three inputs; empty if every replay gives what it should."""
    comm = comms.compute
    x_NX = torch.zeros(64, 512, device=comms.device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for name in names:
            CALLS[name](comm, x_NX)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    comm.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = {name: CALLS[name](comm, x_NX) for name in names}
    problems = []
    for factor in (1, 10, 3):
        x_NX.fill_(float(factor * (comm.rank + 1)))
        graph.replay()
        torch.cuda.synchronize()
        for name, result_NX in results.items():
            got = set(result_NX.flatten().tolist())
            expected = {factor * value for value in _values(name, int(comm.rank), comm.size)}
            if got != expected:
                problems.append(f"{name} × {factor}: got {got}, expected {expected}")
    KEPT.append(graph)
    return "; ".join(problems)


KEPT: list[torch.cuda.CUDAGraph] = []
"""Graphs that live to the end of the process, as a rank's do."""


@pytest.mark.parametrize("names", [("gather", "trade", "sum"), ("uneven gather",), ("exchange",)])
def test_captured_calls_replay(pool: RankPool, names: tuple[str, ...]) -> None:
    assert pool.run(replays, names) == [""] * NUM_GPUS


# ------------------------------------------------------------------------------------------ end


def _live_and_end(rank: int, num_ranks: int, folder: Path, capture: bool) -> bool:
    with rank_comms(gpu_launch(rank, num_ranks, folder)) as comms:
        compute = comms.compute
        assert isinstance(compute, NcclComm)
        x_NX = torch.ones(8, 16, device=comms.device)
        if capture:
            problems = replays(comms, ("gather", "sum"))
            assert not problems, problems
        CALLS["exchange"](comms.transfer, x_NX)
        captured = compute.captured
    with pytest.raises(InvariantBroken, match="closed"):
        compute.exchange([], [], tag="late")
    compute.close()  # once more is nothing
    return captured


@pytest.mark.parametrize("capture", [False, True])
def test_processes_end_by_themselves(tmp_path: Path, capture: bool) -> None:
    # NCCL waits for graphs that hold its collectives before it frees a communicator: must not be waited for.
    assert run_to_the_end(_live_and_end, NUM_GPUS, tmp_path, capture) == [capture] * NUM_GPUS


def _fail_on_last(rank: int, num_ranks: int, folder: Path) -> str:
    try:
        with rank_comms(gpu_launch(rank, num_ranks, folder, collective_timeout_s=30.0)):
            if rank == num_ranks - 1:
                raise KeyError("lost")
    except KeyError as error:
        return str(error)
    return ""


def test_a_rank_that_fails_leaves_its_group_without_hanging(tmp_path: Path) -> None:
    answers: list[Any] = run_to_the_end(_fail_on_last, NUM_GPUS, tmp_path)
    assert answers == [""] * (NUM_GPUS - 1) + ["'lost'"]


def _alone(rank: int, num_ranks: int, folder: Path) -> bool:
    with rank_comms(gpu_launch(rank, num_ranks, folder)) as comms:
        x_NX = torch.ones(3, 2, device=comms.device)
        landed = torch.zeros_like(x_NX)
        me = RankId(0)
        comms.transfer.exchange([Transfer(me, x_NX)], [Transfer(me, landed)], tag="self")
        return (
            comms.compute.all_gather_rows(x_NX, [3], tag="gather") is x_NX
            and comms.compute.reduce_scatter_rows(x_NX, [3], tag="sum") is x_NX
            and torch.equal(landed, x_NX)
        )


def test_one_rank_needs_no_peer(tmp_path: Path) -> None:
    assert NUM_GPUS > 0, "torch sees no GPU"
    assert run_to_the_end(_alone, 1, tmp_path) == [True]
