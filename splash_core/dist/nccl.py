"""Collectives over a `torch.distributed` NCCL group: ranks with a GPU each.

Everything is enqueued on the *current* CUDA stream and the call returns: a result may be used on that stream,
or on one that waits for it, and tensors that belong to the stream need no `record_stream`. torch 2.11 runs
synchronous collectives (`async_op=False`) on the current stream itself; grouped sends and receives run on the
group's own stream, which joins the current one at both ends. Only `barrier` waits on the host.

Rows travel as bytes, so any element type does. Uneven row counts need no padding: they are one grouped
exchange with the sizes that every rank knows. Each pair of ranks posts its sends and receives even if they
are empty, because NCCL matches empty messages too: no rank may leave a row collective out on its own.
"""

# pyright: reportPrivateImportUsage=false
# torch.distributed documents its process groups but does not list them as exported.

import ctypes
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _abort_process_group
from typing_extensions import override

from splash_core.dist.comm import Transfer
from splash_core.dist.process_group import ProcessGroupComm
from splash_core.dist.rows import as_bytes, check_counts, check_rows, row_bytes, sum_in_rank_order
from splash_core.errors import GroupFailed, InvariantBroken

_BLOCK_LIMITS = (1, 2, 4, 8, 16, 32, 64)
"""Most thread blocks of a communicator that NCCL tells apart."""

_log = logging.getLogger("splash.dist")


class NcclComm(ProcessGroupComm):
    """A `Comm` over `group`, whose ranks are those of the job in order, on this rank's `device`.

    Sums: with equal counts NCCL sums in an order of its own, which is fixed for a given size, type and
    topology but is not rank order, and half types are rounded after each addition. With uneven counts the
    parts are exchanged and summed in rank order, as on CPU.

    A peer that ends leaves kernels waiting on the GPU, where nothing can raise: the group's watchdog then
    ends this process after the group's timeout, unless the leader's deadline has ended it before.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(group)
        self._device = device
        self._token = torch.zeros(1, device=device)
        self._captured = False
        self._closed = False

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group, for libraries that want one."""
        return self._group

    @property
    def captured(self) -> bool:
        """True once a CUDA graph holds any of this communicator's collectives."""
        return self._captured

    @override
    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        check_counts(counts, self._size, tag=tag)
        check_rows(x_NX, counts[self._rank], tag=tag)
        if self._size == 1:
            return x_NX
        gathered_NX = x_NX.new_empty((sum(counts), *x_NX.shape[1:]))
        if gathered_NX.numel() == 0:
            return gathered_NX
        with self._enqueue(tag):
            if _equal(counts):
                dist.all_gather_into_tensor(as_bytes(gathered_NX), as_bytes(x_NX), group=self._group)
            else:
                parts = [as_bytes(part_NX) for part_NX in gathered_NX.split(list(counts))]
                dist.all_to_all(parts, [as_bytes(x_NX)] * self._size, group=self._group)
        return gathered_NX

    @override
    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        check_counts(send_counts, self._size, tag=tag)
        check_counts(recv_counts, self._size, tag=tag)
        check_rows(x_NX, sum(send_counts), tag=tag)
        if self._size == 1:
            return x_NX
        received_NX = x_NX.new_empty((sum(recv_counts), *x_NX.shape[1:]))
        width = row_bytes(x_NX)
        if width == 0:
            return received_NX
        with self._enqueue(tag):
            # Always with split sizes: a rank whose own counts are equal must not take another path than a
            # rank whose counts are not.
            dist.all_to_all_single(
                as_bytes(received_NX),
                as_bytes(x_NX),
                [count * width for count in recv_counts],
                [count * width for count in send_counts],
                group=self._group,
            )
        return received_NX

    @override
    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        check_counts(counts, self._size, tag=tag)
        check_rows(x_NX, sum(counts), tag=tag)
        if self._size == 1:
            return x_NX
        mine = counts[self._rank]
        if x_NX.numel() == 0:
            return x_NX.new_empty((mine, *x_NX.shape[1:]))
        if not _equal(counts):
            parts_NX = self.all_to_all_rows(x_NX, counts, [mine] * self._size, tag=tag)
            return sum_in_rank_order(parts_NX.view(self._size, mine, *x_NX.shape[1:]).unbind())
        sum_NX = x_NX.new_empty((mine, *x_NX.shape[1:]))
        with self._enqueue(tag):
            dist.reduce_scatter_tensor(sum_NX, x_NX, group=self._group)
        return sum_NX

    @override
    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        kept = [[as_bytes(t.tensor) for t in side if t.peer == self._rank] for side in (sends, recvs)]
        # A receive may land in an inference tensor although this thread is not in inference mode.
        with torch.inference_mode(), self._enqueue(tag):
            for sent_B, landing_B in zip(*kept, strict=True):
                landing_B.copy_(sent_B)
            messages = [self._message(dist.isend, t) for t in sends if self._crosses(t)]
            messages += [self._message(dist.irecv, t) for t in recvs if self._crosses(t)]
            # Ranks without a part stay out: grouped sends and receives involve only the two ends.
            for work in dist.batch_isend_irecv(messages) if messages else ():
                work.wait()  # of the current stream, not of the host

    @override
    def barrier(self) -> None:
        """As in `Comm`; the host waits for all that the current stream was given."""
        with self._enqueue("barrier"):
            dist.all_reduce(self._token, group=self._group)
            torch.cuda.current_stream(self._device).synchronize()

    @override
    def close(self) -> None:
        """Refuse further calls and free the communicator's buffers.

        A communicator that a CUDA graph has captured is left to the end of the process: NCCL frees none
        before the last graph that refers to it is gone, and would wait for that here without end.
        """
        if self._closed:
            return
        self._closed = True
        if self._captured:
            # One reference more than anybody drops, or the interpreter's exit would free it all the same.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
            _log.info("rank %d leaves a captured communicator to the end of the process", self._rank)
            return
        _abort_process_group(self._group)

    def _crosses(self, transfer: Transfer) -> bool:
        return transfer.peer != self._rank and transfer.tensor.nbytes > 0

    def _message(self, direction: object, transfer: Transfer) -> dist.P2POp:
        return dist.P2POp(direction, as_bytes(transfer.tensor), transfer.peer, self._group)  # pyright: ignore[reportArgumentType]

    @contextmanager
    def _enqueue(self, tag: str) -> Iterator[None]:
        """What all calls share: refused once closed, noted when captured, errors in the group's words."""
        if self._closed:
            raise InvariantBroken(f"{tag}: the communicator was closed")
        self._captured = self._captured or torch.cuda.is_current_stream_capturing()
        try:
            yield
        except RuntimeError as error:
            raise GroupFailed(f"rank {self._rank} in {tag}: a peer ended or is late ({error})") from error


def nccl_comm(
    *, num_ranks: int, device: torch.device, timeout_s: float, max_ctas: int | None = None
) -> NcclComm:
    """A new communicator over all ranks of the job; every rank makes the same ones in the same order.

    Args:
        num_ranks: T.
        device: this rank's GPU, already the current one.
        timeout_s: longest wait for a peer inside one collective.
        max_ctas: most thread blocks that exchanges take from the GPU; such a communicator runs beside
            computation, so its own stream gets priority: it then progresses between the waves of a GEMM.
    """
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=max_ctas is not None)
    if max_ctas is not None:
        options.config.min_ctas = 1
        options.config.max_ctas = blocks_to_allow(max_ctas, num_ranks)
    timeout = timedelta(seconds=timeout_s)
    # new_group sets it too, but warns when it differs from the default before.
    options._timeout = timeout
    group = dist.new_group(list(range(num_ranks)), timeout=timeout, backend="nccl", pg_options=options)
    if not isinstance(group, dist.ProcessGroup):
        raise GroupFailed("this process is not a member of the group that it joined")
    return NcclComm(group, device)


def blocks_to_allow(used: int, num_ranks: int) -> int:
    """The limit under which an exchange of every rank with every other takes at most `used` thread blocks.

    NCCL 2.28 shares a communicator's blocks out among its ranks, this one included, and rounds each share down
    to a power of two: between two ranks half of the blocks that are allowed would never be used. (An exchange of
    more than some MiB for each block takes more of them, up to the limit.)

    Args:
        used: thread blocks, at least 1.
        num_ranks: T.
    """
    if num_ranks == 1:
        return used
    fitting = [limit for limit in _BLOCK_LIMITS if _blocks_used(limit, num_ranks) <= used]
    return fitting[-1]


def _blocks_used(limit: int, num_ranks: int) -> int:
    share = max(1, limit // num_ranks)
    share = 1 << (share.bit_length() - 1)
    return min(limit, share * (num_ranks - 1))


def _equal(counts: Sequence[int]) -> bool:
    return all(count == counts[0] for count in counts)
