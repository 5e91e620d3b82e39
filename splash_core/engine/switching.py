"""Executing a manifest on one rank: boundary moves, then each layer's state before the layer computes.

`blocking` waits for everything before the step; `overlapped`, and what `precopied` has left, moves layer
after layer while earlier layers compute (docs/model.md §5). A step that is replayed from a recording asks for
no layer by itself, so in every mode all is moved before its rows (docs/decisions, 26). All issue
the same moves in the same order on the same transfer communicator; where the moves run is the lane's
business. A step whose state is in place already (`ready`, the reference that switches are measured against)
is a step without a manifest.

Why running ahead is safe: layer i's move touches only layer i's part of any slot, its sources were
written in earlier steps, and this step writes layer i only after `wait_layer(i)`. Borrowed slots that
gathered weights fill were cleared by the boundary moves. A slot that a chunk reads may be written by that
chunk or a later one: the lane keeps a move's writes behind all reads up to its own.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from torch import Tensor

from splash_core.engine.lanes import Lane, Move, SwitchTimes
from splash_core.engine.movers import StateMover
from splash_core.engine.staging import ChunkWork
from splash_core.kv.arena import Arena
from splash_core.layout.layout import Matrix
from splash_core.switch.manifest import Chunk, Primitive, SwitchManifest, SwitchMode
from splash_core.switch.whole_pages import most_pages, whole_page_chunks


class ChunkMove(Move):
    """One chunk's pages: whole ones, or one layer of each."""

    def __init__(self, work: ChunkWork, mover: StateMover, layer: int | None) -> None:
        self._work = work
        self._mover = mover
        self._layer = layer
        self._rows: Tensor | None = None

    def read(self, track: int) -> None:
        """As in `Move`."""
        self._rows = self._mover.read_pages(self._work, self._layer, track=track)

    def write(self, track: int) -> None:
        """As in `Move`."""
        assert self._rows is not None, "read comes first"
        self._mover.write_pages(self._work, self._layer, self._rows, track=track)
        self._rows = None


class WeightMove(Move):
    """The other ranks' weight shards of one layer."""

    def __init__(self, layer: int, mover: StateMover, matrices: Sequence[Matrix]) -> None:
        self._layer = layer
        self._matrices = matrices
        self._mover = mover

    def read(self, track: int) -> None:
        """Nothing is staged."""

    def write(self, track: int) -> None:
        """As in `Move`."""
        self._mover.gather_weights(self._layer, self._matrices, track=track)


class SwitchExecution:
    """One manifest on its way.

    Args:
        manifest: what to move.
        mode: how to execute it.
        mover: this rank's mover.
        arena: this rank's arena.
        lane: a fresh one, where the moves run.
    """

    def __init__(
        self, manifest: SwitchManifest, mode: SwitchMode, *, mover: StateMover, arena: Arena, lane: Lane
    ) -> None:
        self._mode, self._mover, self._lane = mode, mover, lane
        self._chunks, self._boundary = manifest.layer_chunks, manifest.boundary_chunks
        gathers = manifest.weights is Primitive.ALL_GATHER
        self._matrices, self._num_layers = manifest.gathered, arena.spec.layers
        gathered = frozenset(range(self._num_layers if gathers else 0)).difference(manifest.ready_layers)
        self._gathered = gathered
        """Layers whose weights are to be fetched."""
        # A switch that only discards costs nothing.
        self._moves_any = bool(self._boundary or self._chunks or gathered)
        self._whole = max(mover.whole_page_bytes // arena.map.slot_bytes, 1)
        """Pages that a rank may send, and receive, in one transfer of whole ones."""
        # What copying ahead has left is a page or two of each request.
        few = not (gathered or self._boundary) and most_pages(self._chunks) <= self._whole
        self._at_once = few and mode is SwitchMode.PRECOPIED
        self._begun = self._complete = not self._moves_any
        self._works: list[ChunkWork] = []
        """Kept as long as this object: see `StateMover.prepare`."""

    def start(self) -> None:
        """Begin, if it has not; in blocking mode what is computed next finds everything in place."""
        if self._begun:
            return
        if not self._at_once:
            self._begin_by_layer()
        if self._at_once or self._mode is SwitchMode.BLOCKING:
            self.complete()

    def complete(self) -> None:
        """Let what is computed next see every layer's state, so that it need not go layer by layer.

        Raises:
            Exception: as `wait_layer`.
        """
        if not self._begun:
            self._begin_at_once()
        if not self._complete:
            self._lane.finish()
        self._complete = True

    def wait_layer(self, layer: int) -> None:
        """Let what is computed next see layer `layer`'s state on this rank.

        Raises:
            Exception: whatever a transfer failed with; the group is then to end.
        """
        if not self._complete:
            self._lane.wait_layer(layer)

    def times(self) -> SwitchTimes:
        """What the switch took; ask once, after `complete`."""
        return self._lane.times() if self._moves_any else SwitchTimes()

    def _begin_by_layer(self) -> None:
        """Move layer by layer, so that one can compute while the next one's state is on its way."""
        before, works = self._prepare(self._chunks)
        self._lane.start(before, [self._layer_moves(layer, works) for layer in range(self._num_layers)])

    def _begin_at_once(self) -> None:
        """Move all as if of one layer, whole pages where that takes fewer transfers."""
        most = self._num_layers * len(self._chunks)
        chunks = whole_page_chunks(self._chunks, capacity=self._whole, most=most)
        if chunks is None:
            self._begin_by_layer()
            return
        before, works = self._prepare(chunks)
        weights = (move for layer in range(self._num_layers) for move in self._layer_moves(layer, ()))
        self._lane.start(before, [chain(weights, self._moves(works, None))])

    def _prepare(self, chunks: Sequence[Chunk]) -> tuple[list[Move], list[ChunkWork]]:
        """Boundary moves, and this rank's parts of chunks: whatever is the same for all layers, once."""
        self._begun = True
        works = self._works = self._mover.prepare([*self._boundary, *chunks])
        first = len(self._boundary)
        return list(self._moves(works[:first], None)), works[first:]

    def _layer_moves(self, layer: int, works: Sequence[ChunkWork]) -> Iterator[Move]:
        """One layer's moves, made when the lane comes to them."""
        if layer in self._gathered:
            yield WeightMove(layer, self._mover, self._matrices)
        yield from self._moves(works, layer)

    def _moves(self, works: Sequence[ChunkWork], layer: int | None) -> Iterator[Move]:
        return (ChunkMove(work, self._mover, layer) for work in works)
