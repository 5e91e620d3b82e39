"""Collectives between ranks of one host over shared memory: tens of microseconds, where gloo takes 1 ms.

A decode step makes over a hundred small collectives, so their latency is the step time on CPU. Each call
turns rows into byte streams for `shm_port`. Invariant: a stream's length follows from arguments that both
of its ends have, so no lengths travel and a mismatch is found on the first chunk.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from splash_core.dist.comm import Comm, Transfer
from splash_core.dist.rows import check_counts, check_rows, offsets_of, row_bytes, sum_in_rank_order
from splash_core.dist.shm_port import ShmPort, Span, PortStream
from splash_core.dist.shm_segment import Segment
from splash_core.errors import InvariantBroken
from splash_core.ids import RankId


class ShmComm(Comm):
    """A `Comm` over a shared segment; one object per rank, used by one thread at a time.

    With one rank, results may be the argument itself. In `exchange`, what is sent must not overlap what
    is received.

    Args:
        segment: mapped memory of the group, one segment per communicator.
        rank: this rank.
        pids: process of each rank, watched for its death; those of this process are not watched.
        timeout_s: the longest wait for a peer inside one call.
        spins: most polls before a sleep; by default none when ranks outnumber cores. Fewer are used while
            they do not help, as on a busy machine.
    """

    def __init__(
        self,
        segment: Segment,
        rank: RankId,
        *,
        pids: Sequence[int],
        timeout_s: float,
        spins: int | None = None,
    ) -> None:
        self._rank = rank
        self._port = ShmPort(segment, rank, pids=pids, timeout_s=timeout_s, spins=spins)

    @property
    @override
    def rank(self) -> RankId:
        return self._rank

    @property
    @override
    def size(self) -> int:
        return self._port.num_ranks

    @override
    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        check_counts(counts, self.size, tag=tag)
        check_rows(x_NX, counts[self._rank], tag=tag)
        if self.size == 1 or not any(counts):
            return x_NX
        gathered_NX = x_NX.new_empty((sum(counts), *x_NX.shape[1:]))
        mine = (x_NX.data_ptr(), x_NX.nbytes)
        places = _split(gathered_NX, counts)
        streams = [PortStream(self._port.to_all, (mine,), incoming=False)]
        streams += [PortStream(end, (places[peer],), incoming=True) for peer, end in self._port.from_each.items()]
        self._port.transfer(streams, tag)
        ctypes.memmove(places[self._rank][0], *mine)
        return gathered_NX

    @override
    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        check_counts(send_counts, self.size, tag=tag)
        check_counts(recv_counts, self.size, tag=tag)
        check_rows(x_NX, sum(send_counts), tag=tag)
        if self.size == 1:
            return x_NX
        if send_counts[self._rank] != recv_counts[self._rank]:
            raise ValueError(
                f"{tag}: rank {self._rank} sends itself {send_counts[self._rank]} rows "
                f"and expects {recv_counts[self._rank]}"
            )
        received_NX = x_NX.new_empty((sum(recv_counts), *x_NX.shape[1:]))
        sources, places = _split(x_NX, send_counts), _split(received_NX, recv_counts)
        streams = [PortStream(end, (sources[peer],), incoming=False) for peer, end in self._port.to_peer.items()]
        streams += [PortStream(end, (places[peer],), incoming=True) for peer, end in self._port.from_peer.items()]
        self._port.transfer(streams, tag)
        ctypes.memmove(places[self._rank][0], *sources[self._rank])
        return received_NX

    @override
    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        check_counts(counts, self.size, tag=tag)
        check_rows(x_NX, sum(counts), tag=tag)
        if self.size == 1 or not any(counts):
            return x_NX
        mine = counts[self._rank]
        parts_NX = self.all_to_all_rows(x_NX, counts, [mine] * self.size, tag=tag)
        return sum_in_rank_order(parts_NX.view(self.size, mine, *x_NX.shape[1:]).unbind())

    @override
    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        for transfer in (*sends, *recvs):
            if not transfer.tensor.is_contiguous():
                raise ValueError(
                    f"{tag}: transfers must be contiguous, got strides {transfer.tensor.stride()}"
                )
        streams = [
            PortStream(end, _spans(sends, peer), incoming=False) for peer, end in self._port.to_peer.items()
        ]
        streams += [
            PortStream(end, _spans(recvs, peer), incoming=True) for peer, end in self._port.from_peer.items()
        ]
        _copy_to_self(_spans(sends, self._rank), _spans(recvs, self._rank), self._rank, tag)
        self._port.transfer(streams, tag)

    @override
    def barrier(self) -> None:
        mark = torch.zeros(1, dtype=torch.uint8)
        self.all_gather_rows(mark, [1] * self.size, tag="barrier")

    @override
    def close(self) -> None:
        """Tell the peers and make a call in progress (in another thread) raise."""
        self._port.close()


def _split(x_NX: Tensor, counts: Sequence[int]) -> list[Span]:
    """Where each rank's rows lie in `x_NX`."""
    width, base = row_bytes(x_NX), x_NX.data_ptr()
    return [
        (base + start * width, count * width)
        for start, count in zip(offsets_of(counts)[:-1], counts, strict=True)
    ]


def _spans(transfers: Sequence[Transfer], peer: int) -> list[Span]:
    spans = [(t.tensor.data_ptr(), t.tensor.nbytes) for t in transfers if t.peer == peer]
    return [span for span in spans if span[1]]


def _copy_to_self(sends: Sequence[Span], recvs: Sequence[Span], rank: int, tag: str) -> None:
    """The part of an exchange that stays here: the n-th send lands in the n-th receive."""
    if [length for _, length in sends] != [length for _, length in recvs]:
        raise InvariantBroken(f"{tag}: what rank {rank} sends itself is not what it expects")
    for (source, length), (target, _) in zip(sends, recvs, strict=True):
        ctypes.memmove(target, source, length)
