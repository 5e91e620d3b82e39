"""Lanes: what runs beside what, in which order, and how long the step waits for it."""

import itertools
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.engine.lanes import Move, SwitchTimes, ThreadLane
from splash_core.engine.stream_lane import StreamLane
from tests.support.fake_gpu import FakeGpu, FakeMove

SECONDS = st.floats(0.0, 2.0)
WITHIN_S = 20.0


def step(
    gpu: FakeGpu, lane: StreamLane, layers: Sequence[Sequence[Move]], computes: Sequence[float]
) -> tuple[float, SwitchTimes]:
    """A step whose layers compute so long; how much longer it takes than without a switch, and the times."""
    began = gpu.main.time
    lane.start([], layers)
    for layer, compute_s in enumerate(computes):
        lane.wait_layer(layer)
        gpu.main.run(compute_s)
    lane.finish()
    return gpu.main.time - began - sum(computes), lane.times()


@given(layers=st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=12), ahead=st.integers(1, 4))
def test_exposed_time_is_what_the_formula_says(layers: list[tuple[float, float]], ahead: int) -> None:
    # docs/model.md §5, where moves wait for nothing but each other.
    gpu = FakeGpu()
    gpu.main.run(1.0)  # the step before
    moved = computed = expected = 0.0
    for transfer, compute_s in layers:
        moved += transfer
        expected = max(expected, moved - computed)
        computed += compute_s
    moves = [[FakeMove(gpu, transfer)] for transfer, _ in layers]
    exposed, times = step(gpu, StreamLane(gpu, layers_ahead=ahead), moves, [c for _, c in layers])
    assert exposed == pytest.approx(expected, abs=1e-6)
    assert times.first_wait_s == pytest.approx(layers[0][0], abs=1e-6)
    assert times.wait_s == pytest.approx(exposed, abs=1e-6)
    assert times.layer_transfer_s == pytest.approx([transfer for transfer, _ in layers], abs=1e-6)


def test_a_blocking_switch_waits_once_for_everything() -> None:
    gpu = FakeGpu()
    lane = StreamLane(gpu, layers_ahead=1)
    lane.start([], [[FakeMove(gpu, 1.0)] for _ in range(5)])
    lane.wait_layer(4)
    assert gpu.main.time == 5.0
    for layer in range(5):
        lane.wait_layer(layer)
        gpu.main.run(0.5)
    lane.finish()
    assert lane.times() == SwitchTimes(first_wait_s=5.0, later_wait_s=0.0, layer_transfer_s=(1.0,) * 5)


@settings(max_examples=200)
@given(
    before=st.lists(st.tuples(SECONDS, SECONDS, SECONDS), max_size=3),
    layers=st.lists(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), max_size=4), min_size=1, max_size=5),
    computes=st.lists(SECONDS, min_size=5, max_size=5),
)
def test_order_of_reads_and_writes(
    before: list[tuple[float, float, float]],
    layers: list[list[tuple[float, float, float]]],
    computes: list[float],
) -> None:
    gpu = FakeGpu()
    gpu.main.run(1.0)

    def moves(durations: list[tuple[float, float, float]]) -> list[FakeMove]:
        return [FakeMove(gpu, transfer, gather=g, scatter=s) for g, transfer, s in durations]

    first, rest = moves(before), [moves(durations) for durations in layers]
    lane = StreamLane(gpu)
    lane.start(first, rest)
    for layer, (own, compute_s) in enumerate(zip(rest, computes, strict=False)):
        lane.wait_layer(layer)
        computes_from, _ = gpu.main.run(compute_s)
        needed = [*first, *(move for done in rest[: layer + 1] for move in done)]
        assert all(move.write_at[1] <= computes_from for move in needed), (layer, own)
    lane.finish()
    every = [*first, *(move for own in rest for move in own)]
    assert all(move.read_at[0] >= 1.0 for move in every), "the step before is over"
    for earlier, later in itertools.pairwise(every):
        assert earlier.read_at[1] <= later.read_at[0], "reads are in order"
        assert earlier.track != later.track, "moves take turns"
    for index, move in enumerate(every):
        assert all(read.read_at[1] <= move.write_at[0] for read in every[:index]), "no write before a read"
        same_track = [other for other in every[:index] if other.track == move.track]
        assert all(other.write_at[1] <= move.read_at[0] for other in same_track), "staging is free"
    ended = max((move.write_at[1] for move in first), default=0.0)
    assert all(move.read_at[0] >= ended for own in rest for move in own), "the boundary comes first"


def test_gathers_and_scatters_hide_behind_exchanges() -> None:
    gpu = FakeGpu()
    chunks: list[Move] = [FakeMove(gpu, 1.0, gather=0.4, scatter=0.4) for _ in range(10)]
    lane = StreamLane(gpu)
    lane.start([], [chunks])
    lane.wait_layer(0)
    assert gpu.main.time == pytest.approx(0.4 + 10 * 1.0 + 0.4)


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_only_some_layers_are_enqueued_ahead(ahead: int) -> None:
    gpu = FakeGpu()
    issued: list[FakeMove] = []
    layers = [[FakeMove(gpu, 1.0, issued=issued)] for _ in range(8)]
    lane = StreamLane(gpu, layers_ahead=ahead)
    lane.start([], layers)
    assert len(issued) == 1
    for layer in range(8):
        lane.wait_layer(layer)
        assert len(issued) == min(8, layer + 1 + min(ahead, layer))
    assert issued == [move for moves in layers for move in moves]


def test_a_boundary_without_layer_moves_is_waited_for() -> None:
    gpu = FakeGpu()
    lane = StreamLane(gpu)
    lane.start([FakeMove(gpu, 2.0)], [[], []])
    lane.wait_layer(0)
    assert gpu.main.time == 2.0
    lane.finish()
    assert lane.times() == SwitchTimes(first_wait_s=2.0, later_wait_s=0.0, layer_transfer_s=(0.0, 0.0))


def test_moves_without_layers_are_waited_for_at_the_end() -> None:
    gpu = FakeGpu()
    lane = StreamLane(gpu)
    lane.start([FakeMove(gpu, 2.0), FakeMove(gpu, 2.0)], [])
    gpu.main.run(1.0)
    lane.finish()
    assert gpu.main.time == 4.0


class Gate(Move):
    """A move that tells when it is being written, and goes on only when it is let."""

    def __init__(self, *, opened: bool = False, failure: Exception | None = None) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.failure = failure
        if opened:
            self.open.set()

    def read(self, track: int) -> None:
        assert track == 0

    def write(self, track: int) -> None:
        self.begun.set()
        if self.failure is not None:
            raise self.failure
        assert self.open.wait(WITHIN_S)


def test_a_thread_moves_the_next_layer_while_this_one_computes() -> None:
    moves = [Gate(opened=True), Gate(), Gate(opened=True)]
    lane = ThreadLane()
    lane.start([Gate(opened=True)], [[move] for move in moves])
    lane.wait_layer(0)
    # Layer 0 computes here; layer 1's move has begun by itself, layer 2's comes after it.
    assert moves[1].begun.wait(WITHIN_S)
    assert not moves[2].begun.is_set()
    moves[1].open.set()
    lane.wait_layer(1)
    lane.finish()
    times = lane.times()
    assert len(times.layer_transfer_s) == 3
    assert times.wait_s == times.first_wait_s + times.later_wait_s > 0


def test_a_failed_move_is_raised_where_its_layer_is_needed() -> None:
    lane = ThreadLane()
    lane.start([], [[Gate(opened=True)], [Gate(failure=KeyError("lost"))], [Gate(opened=True)]])
    with pytest.raises(KeyError, match="lost"):
        lane.wait_layer(2)
    with pytest.raises(KeyError, match="lost"):
        lane.finish()


def test_a_failure_before_any_layer_is_raised_at_the_end() -> None:
    lane = ThreadLane()
    lane.start([Gate(failure=KeyError("lost"))], [])
    with pytest.raises(KeyError, match="lost"):
        lane.finish()
