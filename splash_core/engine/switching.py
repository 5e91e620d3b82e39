"""Executing a manifest on one rank: boundary moves, then each layer's state before the layer computes.

`blocking` waits for everything before the step; `overlapped`, and what `precopied` has left, moves layer
after layer while earlier layers compute (docs/model.md §5). A step that is replayed from a recording asks for
no layer by itself, so in every mode all is moved before its rows (`complete`; docs/decisions, 26). All issue
the same moves in the same order on the same transfer communicator; where the moves run is the lane's
business. A step whose state is in place already (`ready`, the reference that switches are measured against)
is a step without a manifest.

Why running ahead is safe: layer i's move touches only layer i's part of any slot, its sources were
written in earlier steps, and this step writes layer i only after `wait_layer(i)`. Borrowed slots that
gathered weights fill were cleared by the boundary moves. A slot that a chunk reads may be written by that
chunk or a later one: the lane keeps a move's writes behind all reads up to its own.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from torch import Tensor

from splash_core.engine.lanes import Lane, Move, SwitchTimes
from splash_core.engine.movers import StateMover
from splash_core.engine.staging import ChunkWork
from splash_core.ids import RankId
from splash_core.kv.arena import Arena
from splash_core.layout.layout import Matrix
from splash_core.switch.manifest import Chunk, Primitive, SwitchManifest, SwitchMode


class PlannedChunk:
    """A chunk of the manifest; this rank's part is worked out when it is first needed, and kept.

    The first read uploads the indices, later ones use them, perhaps on another stream: reads are ordered.
    """

    def __init__(self, chunk: Chunk, mover: StateMover) -> None:
        self._chunk = chunk
        self._mover = mover

    @cached_property
    def work(self) -> ChunkWork:
        """This rank's part."""
        return self._mover.prepare(self._chunk)


class ChunkMove(Move):
    """One chunk's pages: whole ones, or one layer of each."""

    def __init__(self, chunk: PlannedChunk, mover: StateMover, layer: int | None) -> None:
        self._chunk = chunk
        self._mover = mover
        self._layer = layer
        self._rows: Tensor | None = None

    def read(self, track: int) -> None:
        """As in `Move`."""
        self._rows = self._mover.read_pages(self._chunk.work, self._layer, track=track)

    def write(self, track: int) -> None:
        """As in `Move`."""
        assert self._rows is not None, "read comes first"
        self._mover.write_pages(self._chunk.work, self._layer, self._rows, track=track)
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
        self._mode = mode
        self._lane = lane
        self._before = [
            ChunkMove(PlannedChunk(chunk, mover), mover, None) for chunk in manifest.boundary_chunks
        ]
        chunks = [PlannedChunk(chunk, mover) for chunk in manifest.layer_chunks]
        gathers = manifest.weights is Primitive.ALL_GATHER
        gathered = frozenset(range(arena.spec.layers if gathers else 0)).difference(manifest.ready_layers)
        self._layers: list[list[Move]] = [
            [
                *([WeightMove(layer, mover, manifest.gathered)] if layer in gathered else []),
                *(ChunkMove(chunk, mover, layer) for chunk in chunks),
            ]
            for layer in range(arena.spec.layers)
        ]
        # A switch that only discards costs nothing.
        self._moves_any = bool(self._before or chunks or gathered)
        # What copying ahead has left is a page or two of each request: all layers of it in one transfer cost
        # less than launching a transfer for each layer.
        self._at_once = (
            mode is SwitchMode.PRECOPIED
            and not (gathered or self._before)
            and _most_pages(manifest) * arena.map.slot_bytes <= mover.whole_page_bytes
        )
        if self._at_once:
            self._before += [ChunkMove(chunk, mover, None) for chunk in chunks]
            self._layers = []

    def start(self) -> None:
        """Begin; in blocking mode what is computed next finds everything in place."""
        if not self._moves_any:
            return
        self._lane.start(self._before, self._layers)
        if self._at_once:
            self._lane.finish()
        elif self._mode is SwitchMode.BLOCKING:
            self.complete()

    def wait_layer(self, layer: int) -> None:
        """Let what is computed next see layer `layer`'s state on this rank.

        Raises:
            Exception: whatever a transfer failed with; the group is then to end.
        """
        if self._moves_any and not self._at_once:
            self._lane.wait_layer(layer)

    def complete(self) -> None:
        """Let what is computed next see every layer's state, so that it need not go layer by layer.

        Raises:
            Exception: as `wait_layer`.
        """
        if self._layers:
            self.wait_layer(len(self._layers) - 1)

    def finish(self) -> None:
        """Wait for all layers (a step without rows computes none)."""
        if self._moves_any and not self._at_once:
            self._lane.finish()

    def times(self) -> SwitchTimes:
        """What the switch took; ask once, after `finish`."""
        return self._lane.times() if self._moves_any else SwitchTimes()


def _most_pages(manifest: SwitchManifest) -> int:
    """Pages that some rank sends, or receives, in the layer chunks; of the rank and the side with most."""
    sides = Counter[tuple[str, RankId]]()
    for move in (move for chunk in manifest.layer_chunks for move in chunk):
        sides["sent", move.src] += 1
        sides["received", move.dst] += 1
    return max(sides.values(), default=0)
