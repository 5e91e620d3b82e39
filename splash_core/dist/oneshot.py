"""Small collectives by reading peers' memory: one barrier a call instead of a library's protocol.

A decode step makes hundreds of collectives of a few KiB, where NCCL's latency is most of the time. Here a rank
copies what it sends into memory that its peers can read, all ranks pass a barrier, and each reads what it
wants. Calls alternate between two halves of that memory: a rank that is one call ahead writes the other
half, and it cannot be two ahead, since the barrier between waits for the slowest reader.

Invariant: a sequence of calls that ends with `settle` may be repeated without further ado, as a CUDA
graph does. Sums are taken in rank order. What is larger than half the memory goes to the other communicator.
"""

from collections.abc import Sequence
import torch
from torch import Tensor
from typing_extensions import override

from splash_core.dist.comm import Comm, Transfer
from splash_core.dist.peer_memory import PeerMemory
from splash_core.dist.rows import (
    as_bytes,
    check_counts,
    check_rows,
    offsets_of,
    row_bytes,
    sum_in_rank_order,
)
from splash_core.ids import RankId


class OneShotComm(Comm):
    """A `Comm` for small messages, over another one for the rest: for padded steps (`attention.padding`).

    There all counts of an all-to-all are equal. Others may be given if they are uneven on every rank: a rank
    sees its own counts only, and all ranks must take the same way.

    A peer that ends leaves the others in a barrier on the GPU, where nothing can raise: the leader's deadline
    ends them.

    Args:
        large: the same ranks.
        memory: for this communicator alone.
    """

    def __init__(self, large: Comm, memory: PeerMemory) -> None:
        self._large = large
        self._memory = memory
        self._half_bytes = memory.num_bytes // 2
        self._half = 0

    @property
    @override
    def rank(self) -> RankId:
        return self._large.rank

    @property
    @override
    def size(self) -> int:
        return self._large.size

    @override
    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        if not self._fits(x_NX, max(counts)):
            return self._large.all_gather_rows(x_NX, counts, tag=tag)
        check_counts(counts, self.size, tag=tag)
        check_rows(x_NX, counts[self.rank], tag=tag)
        rows = self._publish(x_NX)
        return torch.cat([rows(peer, 0, count) for peer, count in enumerate(counts)])

    @override
    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        # Where a peer's rows for this rank begin is known only if all ranks send alike.
        alike = len({*send_counts, *recv_counts}) == 1
        if not alike or not self._fits(x_NX, sum(send_counts)):
            return self._large.all_to_all_rows(x_NX, send_counts, recv_counts, tag=tag)
        check_rows(x_NX, sum(send_counts), tag=tag)
        rows, count = self._publish(x_NX), send_counts[0]
        return torch.cat([rows(peer, self.rank * count, count) for peer in range(self.size)])

    @override
    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        if not self._fits(x_NX, sum(counts)):
            return self._large.reduce_scatter_rows(x_NX, counts, tag=tag)
        check_counts(counts, self.size, tag=tag)
        check_rows(x_NX, sum(counts), tag=tag)
        rows, first = self._publish(x_NX), offsets_of(counts)[self.rank]
        return sum_in_rank_order([rows(peer, first, counts[self.rank]) for peer in range(self.size)])

    @override
    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        self._large.exchange(sends, recvs, tag=tag)

    @override
    def barrier(self) -> None:
        self._memory.barrier()

    @override
    def settle(self) -> None:
        if self._half == 1:
            self._memory.barrier()
            self._half = 0

    @override
    def close(self) -> None:
        """The other communicator is closed by whoever made it."""

    def _fits(self, x_NX: Tensor, most_rows: int) -> bool:
        return self.size > 1 and 0 < most_rows * row_bytes(x_NX) <= self._half_bytes

    def _publish(self, x_NX: Tensor) -> "_Published":
        base = self._half * self._half_bytes
        self._half = 1 - self._half
        self._memory.of(self.rank)[base : base + x_NX.nbytes].copy_(as_bytes(x_NX))
        self._memory.barrier()
        return _Published(self._memory, base, x_NX)


class _Published:
    """Rows of any rank's tensor of one call, as views of its memory."""

    def __init__(self, memory: PeerMemory, base: int, like_NX: Tensor) -> None:
        self._memory, self._base = memory, base
        self._dtype, self._shape, self._width = like_NX.dtype, like_NX.shape[1:], row_bytes(like_NX)

    def __call__(self, rank: int, first: int, count: int) -> Tensor:
        begin = self._base + first * self._width
        rows_B = self._memory.of(rank)[begin : begin + count * self._width]
        return rows_B.view(self._dtype).view(count, *self._shape)
