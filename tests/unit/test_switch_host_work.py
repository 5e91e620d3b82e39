"""What hosts do before a switch's first move: it grows neither with pages nor with layers.

Counted in calls of functions, of which a look at a page takes at least one: a slow machine changes nothing.
"""

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from splash_core.engine.lanes import Lane, Move, SwitchTimes
from splash_core.engine.mirror import SequenceMirrors
from splash_core.engine.precopying import PrecopyExecution
from splash_core.engine.staging import ChunkWork, prepare
from splash_core.engine.switching import SwitchExecution
from splash_core.ids import Epoch, RankId, SeqId, StepId
from splash_core.layout.columns import SlotRows, column, page_column
from splash_core.layout.layout import Layout, Matrix
from splash_core.pb import rank_pb2
from splash_core.rpc.codec import plan_from_pb, plan_to_pb
from splash_core.scheduling.step import NewSequence, StepPlan, TableUpdate
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Chunk, Flow, Primitive, SwitchManifest, SwitchMode
from splash_core.switch.precopy import PrecopyBatch

T = 3
SEQ = SeqId(1)
FAR = 100_000
"""Slots from here on are free before the switch."""


def calls(operation: Callable[[], object]) -> int:
    """Functions that an operation calls, those of C included."""
    seen = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(before)
    return seen


def chunk(pages: int) -> Chunk:
    """So many pages from each rank to all others."""
    ranks = [RankId(rank) for rank in range(T)]
    ids, slots = page_column(range(pages)), column(range(pages))
    return Chunk(
        tuple(
            Flow(src, dst, ids, slots, column(range(FAR + src * pages, FAR + (src + 1) * pages)))
            for src in ranks
            for dst in ranks
            if src != dst
        )
    )


def plan(pages: int, chunks: int = 2) -> StepPlan:
    manifest = SwitchManifest(
        layout_from=Layout.DP,
        layout_to=Layout.TP,
        epoch=Epoch(1),
        weights=Primitive.ALL_GATHER,
        gathered=(Matrix.O,),
        kv=Primitive.ALL_GATHER,
        layer_chunks=(chunk(pages),) * chunks,
        released=(column(range(pages)),) * T,
    )
    rows = SlotRows.of([[page, page, page] for page in range(pages)], num_ranks=T)
    new = NewSequence(seq=SEQ, sampling=SamplingParams(), tokens=(), num_prompt=0)
    return StepPlan(
        step=StepId(1),
        epoch=Epoch(1),
        layout=Layout.TP,
        manifest=manifest,
        started=(new,),
        tables=(TableUpdate(seq=SEQ, first_page=0, slots=rows),),
    )


class StillMover:
    """Plans as real movers do, moves nothing, and notes what it is asked for."""

    whole_page_bytes = 0

    def __init__(self) -> None:
        self.prepared: list[int] = []
        self.seen: list[tuple[str, int | None]] = []

    def prepare(self, chunks: Sequence[Chunk]) -> list[ChunkWork]:
        self.prepared.append(len(chunks))
        return prepare(chunks, rank=RankId(1), device=torch.device("cpu"))

    def read_pages(self, work: ChunkWork, layer: int | None, *, track: int) -> torch.Tensor:
        del track
        self.seen.append(("pages", layer))
        return work.read_slots

    def write_pages(self, work: ChunkWork, layer: int | None, rows: torch.Tensor, *, track: int) -> None:
        """Nothing."""

    def gather_weights(self, layer: int, matrices: Sequence[Matrix], *, track: int) -> None:
        del matrices, track
        self.seen.append(("weights", layer))


class KeepingMover(StillMover):
    """Knows whose indices are still in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._indices: list[weakref.ref[torch.Tensor]] = []

    @property
    def alive(self) -> int:
        """Chunks whose indices are."""
        return sum(indices() is not None for indices in self._indices)

    def prepare(self, chunks: Sequence[Chunk]) -> list[ChunkWork]:
        works = super().prepare(chunks)
        self._indices += [weakref.ref(work.read_slots) for work in works]
        return works


class HeldLane(Lane):
    """Runs the first layer's moves at once, and the others' when it is asked for them."""

    def __init__(self) -> None:
        self._layers: Sequence[Iterable[Move]] = ()
        self._next = 0

    def start(self, before: Sequence[Move], layers: Sequence[Iterable[Move]]) -> None:
        self._run(before)
        self._layers = layers
        if layers:
            self.wait_layer(0)

    def wait_layer(self, layer: int) -> None:
        while self._next <= layer:
            self._run(self._layers[self._next])
            self._next += 1

    def _run(self, moves: Iterable[Move]) -> None:
        for move in moves:
            move.read(0)
            move.write(0)

    def finish(self) -> None:
        self.wait_layer(len(self._layers) - 1)

    def times(self) -> SwitchTimes:
        return SwitchTimes()


def execution(of: StepPlan, mover: StillMover, *, layers: int = 4) -> SwitchExecution:
    assert of.manifest is not None
    arena: Any = SimpleNamespace(spec=SimpleNamespace(layers=layers), map=SimpleNamespace(slot_bytes=1))
    still: Any = mover
    return SwitchExecution(of.manifest, SwitchMode.OVERLAPPED, mover=still, arena=arena, lane=HeldLane())


def encoded(of: StepPlan) -> bytes:
    return plan_to_pb(of).SerializeToString()


def decoded(packed: bytes) -> StepPlan:
    return plan_from_pb(rank_pb2.StepPlan.FromString(packed), num_ranks=T)


def mirror(of: StepPlan) -> None:
    SequenceMirrors(T).apply(of)


@pytest.mark.parametrize(
    "operation",
    [
        lambda of: encoded(of),
        lambda of: decoded(encoded(of)),
        lambda of: mirror(of),
        lambda of: prepare(of.manifest.layer_chunks, rank=RankId(1), device=torch.device("cpu")),
        lambda of: [work.found_at for work in StillMover().prepare(of.manifest.layer_chunks)],
        lambda of: execution(of, StillMover()).start(),
    ],
    ids=["encode", "decode", "mirror", "prepare", "find", "start"],
)
def test_more_pages_are_no_more_work(operation: Callable[[StepPlan], object]) -> None:
    few, many = plan(8), plan(2000)
    operation(few)  # what is made once in a process
    assert calls(lambda: operation(many)) == calls(lambda: operation(few))


def test_more_layers_are_hardly_more_work_before_the_first_move() -> None:
    of, layers = plan(8, chunks=10), (4, 64)
    execution(of, StillMover()).start()
    few, many = (calls(execution(of, StillMover(), layers=count).start) for count in layers)
    # One for each layer: not one for each of its moves.
    assert many - few <= 2 * (layers[1] - layers[0])


def test_what_layers_have_in_common_is_made_once_and_moves_in_their_turn() -> None:
    mover = StillMover()
    switch = execution(plan(8, chunks=3), mover)
    assert mover.prepared == []
    switch.start()
    assert mover.prepared == [3]
    assert mover.seen == [("weights", 0), *[("pages", 0)] * 3]
    switch.wait_layer(1)
    assert mover.seen[4:] == [("weights", 1), *[("pages", 1)] * 3]
    switch.complete()
    assert len(mover.seen) == 16
    assert mover.prepared == [3]


def test_indices_of_all_chunks_come_in_one_copy() -> None:
    works = StillMover().prepare([chunk(5), chunk(7), Chunk(), chunk(2)])
    tensors = [slots for work in works for slots in (work.read_slots, work.write_slots)]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert [len(tensor) for tensor in tensors] == [5, 10, 7, 14, 0, 0, 2, 4]
    assert all(tensor.storage_offset() % 2 == 0 for tensor in tensors), "16 bytes, as kernels want them"
    assert prepare([], rank=RankId(0), device=torch.device("cpu")) == []


def test_indices_stay_until_what_is_computed_next_waits_for_the_moves() -> None:
    """They are the computing stream's memory: dropped sooner, the next tensor may take their place."""
    mover = KeepingMover()
    switch = execution(plan(8), mover)
    switch.start()
    switch.wait_layer(3)  # of four: all moves are enqueued, and nothing asks for them again
    gc.collect()
    assert mover.alive == 2
    switch.complete()
    del switch
    gc.collect()
    assert mover.alive == 0


def test_indices_of_copies_ahead_stay_as_long() -> None:
    mover = KeepingMover()
    still: Any = mover
    ahead = PrecopyExecution(PrecopyBatch(chunks=(chunk(8), chunk(5))), mover=still, lane=HeldLane())
    ahead.start()
    gc.collect()
    assert mover.alive == 2
    ahead.finish()
    del ahead
    gc.collect()
    assert mover.alive == 0
