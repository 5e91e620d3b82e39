"""Collectives over a `torch.distributed` gloo group: ranks on several hosts, or machines without shm.

Every call is one all-to-all of bytes: measured on CPU it beats all_gather, reduce_scatter and grouped
isend/irecv at the sizes of a decode step, takes uneven and empty parts without padding, and leaves the
order of sums to us. Invariant: the group is passed in; the default group is never used.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from splash_core.dist.comm import Transfer
from splash_core.dist.process_group import ProcessGroupComm
from splash_core.dist.rows import as_bytes, check_counts, check_rows, row_bytes, sum_in_rank_order
from splash_core.errors import GroupFailed, InvariantBroken


class GlooComm(ProcessGroupComm):
    """A `Comm` over `group`, used by one thread at a time. With one rank, results may be the argument."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self._closed = False

    @override
    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        check_counts(counts, self._size, tag=tag)
        check_rows(x_NX, counts[self._rank], tag=tag)
        if self._size == 1 or not any(counts):
            return x_NX
        width = row_bytes(x_NX)
        gathered_B = self._trade(
            as_bytes(x_NX).repeat(self._size),
            [x_NX.nbytes] * self._size,
            [count * width for count in counts],
            tag,
        )
        return _as_rows(gathered_B, x_NX, sum(counts))

    @override
    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        check_counts(send_counts, self._size, tag=tag)
        check_counts(recv_counts, self._size, tag=tag)
        check_rows(x_NX, sum(send_counts), tag=tag)
        if self._size == 1:
            return x_NX
        width = row_bytes(x_NX)
        received_B = self._trade(
            as_bytes(x_NX), [n * width for n in send_counts], [n * width for n in recv_counts], tag
        )
        return _as_rows(received_B, x_NX, sum(recv_counts))

    @override
    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        check_counts(counts, self._size, tag=tag)
        check_rows(x_NX, sum(counts), tag=tag)
        if self._size == 1 or not any(counts):
            return x_NX
        mine = counts[self._rank]
        parts_NX = self.all_to_all_rows(x_NX, counts, [mine] * self._size, tag=tag)
        return sum_in_rank_order(parts_NX.view(self._size, mine, *x_NX.shape[1:]).unbind())

    @override
    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        outgoing = [[t.tensor for t in sends if t.peer == peer] for peer in range(self._size)]
        incoming = [[t.tensor for t in recvs if t.peer == peer] for peer in range(self._size)]
        received_B = self._trade(
            torch.cat([as_bytes(x_X) for outbox in outgoing for x_X in outbox] or [_NO_BYTES]),
            [sum(x_X.nbytes for x_X in outbox) for outbox in outgoing],
            [sum(x_X.nbytes for x_X in inbox) for inbox in incoming],
            tag,
        )
        start = 0
        # A receive may land in an inference tensor although this thread is not in inference mode.
        with torch.inference_mode():
            for x_X in (x_X for inbox in incoming for x_X in inbox):
                as_bytes(x_X).copy_(received_B[start : start + x_X.nbytes])
                start += x_X.nbytes

    @override
    def barrier(self) -> None:
        self._trade(torch.zeros(self._size, dtype=torch.uint8), [1] * self._size, [1] * self._size, "barrier")

    @override
    def close(self) -> None:
        """Refuse further calls; the group itself belongs to whoever made it."""
        self._closed = True

    def _trade(
        self, outgoing_B: Tensor, send_bytes: Sequence[int], recv_bytes: Sequence[int], tag: str
    ) -> Tensor:
        if self._closed:
            raise InvariantBroken(f"{tag}: the communicator was closed")
        received_B = torch.empty(sum(recv_bytes), dtype=torch.uint8)
        try:
            dist.all_to_all_single(
                received_B, outgoing_B, list(recv_bytes), list(send_bytes), group=self._group
            )
        except RuntimeError as error:
            raise GroupFailed(f"rank {self._rank} in {tag}: a peer ended or is late ({error})") from error
        return received_B


_NO_BYTES = torch.empty(0, dtype=torch.uint8)


def _as_rows(x_B: Tensor, like_NX: Tensor, rows: int) -> Tensor:
    return x_B.view(like_NX.dtype).view(rows, *like_NX.shape[1:])
