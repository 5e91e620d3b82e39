"""Executing a manifest on one rank: boundary moves, then each layer's state before the layer computes.

`blocking` moves everything before the step; `overlapped`, and what `precopied` has left, moves layer after
layer on a thread of its own while earlier layers compute (docs/model.md §5). All run the same code on the
same transfer communicator.

Why running ahead is safe: layer i's move touches only layer i's part of any slot, its sources were
written in earlier steps, and this step writes layer i only after `wait_layer(i)`. Borrowed slots that
gathered weights fill were cleared by the boundary moves.
"""

import queue
import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from splash_core.dist.comm import Comm, Transfer
from splash_core.ids import RankId
from splash_core.kv.arena import Arena
from splash_core.layout.layout import Matrix
from splash_core.switch.manifest import Chunk, PageMove, Primitive, SwitchManifest, SwitchMode


class ChunkWork:
    """One rank's part of a chunk as slot indices, made once and used for every layer.

    Args:
        chunk: the moves of all ranks.
        rank: this rank.
        num_ranks: T.
        device: where the arena lives.
    """

    def __init__(self, chunk: Chunk, *, rank: RankId, num_ranks: int, device: torch.device) -> None:
        def slots(side: str, moves: Sequence[PageMove]) -> Tensor:
            return torch.tensor([getattr(move, side) for move in moves], dtype=torch.long, device=device)

        local = [move for move in chunk if move.src == rank == move.dst]
        self.local_from, self.local_to = slots("src_slot", local), slots("dst_slot", local)
        self.sends: list[tuple[RankId, Tensor]] = []
        self.recvs: list[tuple[RankId, Tensor]] = []
        for peer in (RankId(other) for other in range(num_ranks) if other != rank):
            outgoing = [move for move in chunk if move.src == rank and move.dst == peer]
            incoming = [move for move in chunk if move.dst == rank and move.src == peer]
            if outgoing:
                self.sends.append((peer, slots("src_slot", outgoing)))
            if incoming:
                self.recvs.append((peer, slots("dst_slot", incoming)))


class StateMover:
    """Moves pages and weight shards between ranks' arenas."""

    def __init__(self, arena: Arena, comm: Comm) -> None:
        self._arena = arena
        self._comm = comm
        self.bytes_received = 0
        """From other ranks, since the mover was made."""

    def prepare(self, chunk: Chunk) -> ChunkWork:
        """This rank's part of a chunk."""
        device = self._arena.pages_SLPC.device
        return ChunkWork(chunk, rank=self._comm.rank, num_ranks=self._comm.size, device=device)

    def move_pages(self, work: ChunkWork, pages: Tensor) -> None:
        """Execute one chunk: every source is read into staging before any destination is written.

        Args:
            work: this rank's part; all ranks call for the same chunk, also those without a part.
            pages: `[S, …]`, the arena or one layer of it.
        """
        kept = pages[work.local_from]
        sends = [Transfer(peer, pages[slots]) for peer, slots in work.sends]
        recvs = [
            Transfer(peer, pages.new_empty((len(slots), *pages.shape[1:]))) for peer, slots in work.recvs
        ]
        self._comm.exchange(sends, recvs, tag="switch.pages")
        pages[work.local_to] = kept
        for (_, slots), received in zip(work.recvs, recvs, strict=True):
            pages[slots] = received.tensor
            self.bytes_received += received.tensor.nbytes

    def gather_weights(self, layer: int, matrices: Sequence[Matrix]) -> None:
        """Fetch the other ranks' shards of one layer, each into its rotated place: no repacking."""
        me = self._comm.rank
        peers = [RankId(peer) for peer in range(self._comm.size) if peer != me]
        shard = self._arena.shard
        recvs = [Transfer(peer, shard(layer, matrix, peer)) for peer in peers for matrix in matrices]
        self._comm.exchange(
            [Transfer(peer, shard(layer, matrix, me)) for peer in peers for matrix in matrices],
            recvs,
            tag="switch.weights",
        )
        self.bytes_received += sum(recv.tensor.nbytes for recv in recvs)


class SwitchExecution:
    """One manifest on its way.

    Args:
        manifest: what to move.
        mode: how to execute it.
        mover: this rank's mover.
        arena: this rank's arena.
    """

    def __init__(
        self, manifest: SwitchManifest, mode: SwitchMode, *, mover: StateMover, arena: Arena
    ) -> None:
        self._manifest = manifest
        self._mode = mode
        self._mover = mover
        self._arena = arena
        self._num_layers = arena.spec.layers
        gathers = self._num_layers if manifest.weights is Primitive.ALL_GATHER else 0
        self._gathers = frozenset(range(gathers)).difference(manifest.ready_layers)
        self._layer_work = [mover.prepare(chunk) for chunk in manifest.layer_chunks]
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._layers_ready = 0
        self._thread: threading.Thread | None = None
        self.wait_s = 0.0
        """Time that the step has waited for state so far."""

    def start(self) -> None:
        """Do the boundary moves; then all layers (blocking), or begin them in the background."""
        began = time.perf_counter()
        for chunk in self._manifest.boundary_chunks:
            self._mover.move_pages(self._mover.prepare(chunk), self._arena.pages_SLPC)
        if self._moves_layers and self._mode is not SwitchMode.BLOCKING:
            self._thread = threading.Thread(target=self._run_ahead, name="splash-switch", daemon=True)
            self._thread.start()
        else:
            for layer in range(self._num_layers):
                self._move_layer(layer)
            self._layers_ready = self._num_layers
        self.wait_s += time.perf_counter() - began

    def wait_layer(self, layer: int) -> None:
        """Return once layer `layer`'s state is in place on this rank.

        Raises:
            Exception: whatever a transfer failed with; the group is then to end.
        """
        began = time.perf_counter()
        while self._layers_ready <= layer:
            failure = self._ready.get()
            if failure is not None:
                raise failure
            self._layers_ready += 1
        self.wait_s += time.perf_counter() - began

    def finish(self) -> None:
        """Wait for all layers (a step without rows computes none)."""
        self.wait_layer(self._num_layers - 1)
        if self._thread is not None:
            self._thread.join()

    @property
    def _moves_layers(self) -> bool:
        return bool(self._manifest.layer_chunks) or bool(self._gathers)

    def _move_layer(self, layer: int) -> None:
        if layer in self._gathers:
            self._mover.gather_weights(layer, self._manifest.gathered)
        for work in self._layer_work:
            self._mover.move_pages(work, self._arena.layer(layer))

    def _run_ahead(self) -> None:
        try:
            with torch.inference_mode():  # thread-local: the step's own does not reach this thread
                for layer in range(self._num_layers):
                    self._move_layer(layer)
                    self._ready.put(None)
        except Exception as failure:  # handed to the step, which raises it
            self._ready.put(failure)
