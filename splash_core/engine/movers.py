"""Moving one chunk of pages, or one layer's weight shards, between the arenas of a group's ranks.

Two ways: ranks *exchange* what they staged over the transfer communicator, or, where each can read memory of
the others, every rank *pulls* what it needs out of theirs, which works within one host only. Both keep the
rule of `engine.lanes`: a chunk's sources are read by all ranks before any rank writes its destinations.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from splash_core.dist.comm import Comm, Transfer
from splash_core.dist.peer_memory import PeerMemory
from splash_core.dist.rows import as_bytes
from splash_core.engine.staging import ChunkWork, Staging, prepare
from splash_core.errors import InvariantBroken
from splash_core.ids import RankId
from splash_core.kernels.base import Kernels
from splash_core.kv.arena import Arena
from splash_core.layout.layout import Matrix
from splash_core.switch.chunks import CHUNKS_UNDER_WAY, chunk_bytes
from splash_core.switch.manifest import Chunk
from splash_core.units import STAGING_BYTES


class StateMover(Protocol):
    """One for the life of a rank. All ranks make the same calls in the same order, with or without a part."""

    staging: Staging
    bytes_received: int
    """From other ranks, since the mover was made."""
    whole_page_bytes: int
    """Most that a rank may send, and receive, in one transfer of whole pages; equal on all ranks."""

    def prepare(self, chunks: Sequence[Chunk]) -> list[ChunkWork]:
        """This rank's parts of chunks, for `read_pages` and `write_pages`; once for all layers of a manifest.

        On a GPU their indices come on the current stream, behind which all reads are to be, and are that
        stream's memory: whoever drops them before it waits for the moves lets what it computes next write
        over indices that are still to be read.
        """
        ...

    def read_pages(self, work: ChunkWork, layer: int | None, *, track: int) -> Tensor:
        """The first half of a chunk: its sources go into a track's staging.

        Args:
            work: from `prepare`.
            layer: which layer of the pages; None: whole pages.
            track: whose staging; calls of one track do not overlap.

        Returns:
            The staging rows, for `write_pages`.
        """
        ...

    def write_pages(self, work: ChunkWork, layer: int | None, rows: Tensor, *, track: int) -> None:
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

    def prepare(self, chunks: Sequence[Chunk]) -> list[ChunkWork]:
        """As in `StateMover`."""
        return prepare(chunks, rank=self._comm.rank, device=self._arena.pages_SLPC.device)

    @torch.inference_mode()
    def read_pages(self, work: ChunkWork, layer: int | None, *, track: int) -> Tensor:
        """As in `StateMover`; rows to be received are not filled yet."""
        pages = self._arena.pages(layer)
        rows = self.staging.rows(track, work.num_rows, pages)
        self._kernels.gather_pages(pages, work.read_slots, out=rows[: work.num_read])
        return rows

    @torch.inference_mode()
    def write_pages(self, work: ChunkWork, layer: int | None, rows: Tensor, *, track: int) -> None:
        """As in `StateMover`."""
        del track
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


class PullingMover(ExchangingMover):
    """Gather what is sent where the peers can read it, barrier, copy what is wanted, barrier, scatter.

    The first barrier says that all ranks have read their sources, the second that what they sent is taken.
    Each track has barriers of its own. Shards of weights go the same way: an exchange would be no slower
    alone, but its kernels hold multiprocessors while they wait for a peer whose own are taken by a long
    attention kernel; a barrier waits with one thread block, and copy engines need none.

    Args:
        arena: this rank's.
        comm: for what is exchanged.
        kernels: of the device.
        outbox: memory that all ranks read; a track has its part of it for what a rank sends in a chunk.
    """

    def __init__(self, arena: Arena, comm: Comm, kernels: Kernels, outbox: PeerMemory) -> None:
        super().__init__(arena, comm, kernels)
        self._outbox = outbox
        self._track_bytes = outbox.num_bytes // CHUNKS_UNDER_WAY

    @override
    @torch.inference_mode()
    def read_pages(self, work: ChunkWork, layer: int | None, *, track: int) -> Tensor:
        """As in `StateMover`; the rows lie in the outbox."""
        pages = self._arena.pages(layer)
        rows = self._sent_rows(self._comm.rank, track, work.num_read, pages)
        self._kernels.gather_pages(pages, work.read_slots, out=rows)
        return rows

    @override
    @torch.inference_mode()
    def write_pages(self, work: ChunkWork, layer: int | None, rows: Tensor, *, track: int) -> None:
        pages = self._arena.pages(layer)
        landing = self.staging.rows(track, work.num_rows - work.num_read, pages)
        self._outbox.barrier(track)
        for peer, (first, end) in work.recvs.items():
            begin, until = work.found_at[peer]
            sent = self._sent_rows(peer, track, until, pages)[begin:]
            landing[first - work.num_read : end - work.num_read].copy_(sent)
        self._outbox.barrier(track)
        self._kernels.scatter_pages(pages, work.write_slots[: work.num_kept], rows[work.num_sent :])
        self._kernels.scatter_pages(pages, work.received_slots, landing)
        self.bytes_received += landing.nbytes

    @override
    @torch.inference_mode()
    def gather_weights(self, layer: int, matrices: Sequence[Matrix], *, track: int) -> None:
        """As in `StateMover`; in pieces that take turns in the halves of the track's part of the outbox."""
        me, half = self._comm.rank, self._track_bytes // 2
        peers = [RankId(peer) for peer in range(self._comm.size) if peer != me]
        pieces = ((matrix, *span) for matrix in matrices for span in self._spans(layer, matrix, half))
        for turn, (matrix, begin, end) in enumerate(pieces):
            # The barrier of the piece between says that the peers have taken what this half held before.
            first = track * self._track_bytes + turn % 2 * half
            sent = slice(first, first + end - begin)
            self._outbox.of(me)[sent].copy_(self._shard_bytes(layer, matrix, me)[begin:end])
            self._outbox.barrier(track)
            for peer in peers:
                self._shard_bytes(layer, matrix, peer)[begin:end].copy_(self._outbox.of(peer)[sent])
                self.bytes_received += end - begin
        self._outbox.barrier(track)

    def _spans(self, layer: int, matrix: Matrix, most: int) -> Iterator[tuple[int, int]]:
        size = self._shard_bytes(layer, matrix, self._comm.rank).numel()
        return ((begin, min(begin + most, size)) for begin in range(0, size, most))

    def _shard_bytes(self, layer: int, matrix: Matrix, owner: RankId) -> Tensor:
        """`[bytes]` uint8: where a rank's shard lies on this rank."""
        return as_bytes(self._arena.shard(layer, matrix, owner))

    def _sent_rows(self, rank: int, track: int, num_rows: int, pages: Tensor) -> Tensor:
        """`[num_rows, …]`: the first rows of what that rank sends on a track."""
        size = num_rows * pages.shape[1:].numel() * pages.element_size()
        if size > self._track_bytes:
            raise InvariantBroken(f"a chunk of {size} bytes for an outbox of {self._track_bytes} a track")
        begin = track * self._track_bytes
        sent_B = self._outbox.of(rank)[begin : begin + size]
        return sent_B.view(pages.dtype).view(num_rows, *pages.shape[1:])
