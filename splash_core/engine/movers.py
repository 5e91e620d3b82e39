"""Moving one chunk of pages, or one layer's weight shards, between the arenas of a group's ranks.

Two ways: ranks *exchange* what they staged over the transfer communicator, or, where each can read the
others' arenas, every rank *pulls* what it needs: nothing is staged where a page comes from, but that works
within one host only. Both keep the rule of `engine.lanes`: a chunk's sources are read by
all ranks before any rank writes its destinations.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from splash_core.dist.comm import Comm, Transfer
from splash_core.dist.peer_memory import SharedMemory
from splash_core.engine.staging import ChunkWork, PullWork, Staging
from splash_core.ids import RankId
from splash_core.kernels.base import Kernels
from splash_core.kv.arena import Arena
from splash_core.layout.layout import Matrix
from splash_core.switch.chunks import chunk_bytes
from splash_core.switch.manifest import Chunk
from splash_core.units import STAGING_BYTES


class StateMover(Protocol):
    """One for the life of a rank. All ranks make the same calls in the same order, with or without a part."""

    staging: Staging
    bytes_received: int
    """From other ranks, since the mover was made."""
    whole_page_bytes: int
    """Most that a rank may send, and receive, in one transfer of whole pages; equal on all ranks."""

    def prepare(self, chunk: Chunk) -> Any:
        """This rank's part of a chunk, for `read_pages` and `write_pages` of this mover."""
        ...

    def read_pages(self, work: Any, layer: int | None, *, track: int) -> Tensor:
        """The first half of a chunk: its sources go into a track's staging.

        Args:
            work: from `prepare`.
            layer: which layer of the pages; None: whole pages.
            track: whose staging; calls of one track do not overlap.

        Returns:
            The staging rows, for `write_pages`.
        """
        ...

    def write_pages(self, work: Any, layer: int | None, rows: Tensor) -> None:
        """The second half: every destination of this rank is written."""
        ...

    def gather_weights(self, layer: int, matrices: Sequence[Matrix], *, track: int) -> None:
        """Fetch the other ranks' shards of one layer, each into its rotated place: no repacking."""
        ...


class ExchangingMover(StateMover):
    """Gather what is sent, one exchange, scatter what arrives: over any communicator."""

    def __init__(self, arena: Arena, comm: Comm, kernels: Kernels) -> None:
        self._kernels = kernels
        self._arena = arena
        self._comm = comm
        self.staging = Staging(arena.pages_SLPC.device)
        self.bytes_received = 0
        self.whole_page_bytes = chunk_bytes(STAGING_BYTES)

    def prepare(self, chunk: Chunk) -> ChunkWork:
        """As in `StateMover`."""
        return ChunkWork(chunk, rank=self._comm.rank, device=self._arena.pages_SLPC.device)

    @torch.inference_mode()
    def read_pages(self, work: ChunkWork, layer: int | None, *, track: int) -> Tensor:
        """As in `StateMover`; rows to be received are not filled yet."""
        pages = self._arena.pages(layer)
        rows = self.staging.rows(track, work.num_rows, pages)
        self._kernels.gather_pages(pages, work.read_slots, out=rows[: work.num_read])
        return rows

    @torch.inference_mode()
    def write_pages(self, work: ChunkWork, layer: int | None, rows: Tensor) -> None:
        """As in `StateMover`."""
        recvs = [Transfer(peer, rows[first:end]) for peer, (first, end) in work.recvs.items()]
        self._comm.exchange(
            [Transfer(peer, rows[first:end]) for peer, (first, end) in work.sends.items()],
            recvs,
            tag="switch.pages",
        )
        self._kernels.scatter_pages(self._arena.pages(layer), work.write_slots, rows[work.num_sent :])
        self.bytes_received += sum(recv.tensor.nbytes for recv in recvs)

    @torch.inference_mode()
    def gather_weights(self, layer: int, matrices: Sequence[Matrix], *, track: int) -> None:
        """As in `StateMover`; straight from arena to arena."""
        del track
        me, shard = self._comm.rank, self._arena.shard
        peers = [RankId(peer) for peer in range(self._comm.size) if peer != me]
        # One exchange for each matrix: transfers between the same two ranks share an exchange's channels, so
        # that in a common one the largest would end long after the others.
        for matrix in matrices:
            recvs = [Transfer(peer, shard(layer, matrix, peer)) for peer in peers]
            own = shard(layer, matrix, me)
            self._comm.exchange([Transfer(peer, own) for peer in peers], recvs, tag="switch.weights")
            self.bytes_received += sum(recv.tensor.nbytes for recv in recvs)


class PullingMover(StateMover):
    """Barrier, read from the peers' arenas, barrier, scatter. Nothing waits on the host.

    The first barrier says that all ranks' earlier steps have written what is read, the second that all have
    read what may be overwritten. Each track has barriers of its own.

    Args:
        arena: this rank's, in `shared`.
        shared: every rank's arena.
        kernels: of the device.
    """

    def __init__(self, arena: Arena, shared: SharedMemory, kernels: Kernels) -> None:
        self._kernels = kernels
        self._arena = arena
        self._memory = memory = shared.memory
        self._reader_ctas = shared.reader_ctas
        self._arenas = [
            arena
            if rank == arena.rank
            else Arena(arena.map, arena.spec, rank=RankId(rank), memory=memory.of(rank), dtype=arena.dtype)
            for rank in range(arena.map.num_ranks)
        ]
        self.staging = Staging(arena.pages_SLPC.device)
        self.bytes_received = 0
        self.whole_page_bytes = chunk_bytes(STAGING_BYTES)

    def prepare(self, chunk: Chunk) -> PullWork:
        """As in `StateMover`."""
        return PullWork(chunk, rank=self._arena.rank, device=self._arena.pages_SLPC.device)

    @torch.inference_mode()
    def read_pages(self, work: PullWork, layer: int | None, *, track: int) -> Tensor:
        """As in `StateMover`; all that this rank will write is there."""
        pages = self._arena.pages(layer)
        rows = self.staging.rows(track, work.num_rows, pages)
        self._memory.barrier(track)
        for source, (first, end) in work.spans.items():
            there, slots, out = self._arenas[source].pages(layer), work.read_slots[first:end], rows[first:end]
            if source == self._arena.rank:
                self._kernels.gather_pages(there, slots, out=out)
            else:
                self._kernels.pull_pages(there, slots, out, max_ctas=self._reader_ctas)
                self.bytes_received += out.nbytes
        self._memory.barrier(track)
        return rows

    @torch.inference_mode()
    def write_pages(self, work: PullWork, layer: int | None, rows: Tensor) -> None:
        """As in `StateMover`."""
        self._kernels.scatter_pages(self._arena.pages(layer), work.write_slots, rows)

    @torch.inference_mode()
    def gather_weights(self, layer: int, matrices: Sequence[Matrix], *, track: int) -> None:
        """As in `StateMover`; copies of whole shards, which take no thread blocks."""
        self._memory.barrier(track)
        for peer in self._peers():
            for matrix in matrices:
                own = self._arena.shard(layer, matrix, peer)
                own.copy_(self._arenas[peer].shard(layer, matrix, peer), non_blocking=True)
                self.bytes_received += own.nbytes
        self._memory.barrier(track)

    def _peers(self) -> list[int]:
        """The other ranks, each rank beginning with the one after it, so that no link has all readers."""
        me, size = self._arena.rank, self._arena.map.num_ranks
        return [(me + step) % size for step in range(1, size)]
