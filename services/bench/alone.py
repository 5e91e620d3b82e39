"""One rank of T by itself on one device: its own work at T's sizes, and the links left out.

What a rank would receive from the others is made up of its own rows, by one small kernel where NCCL has one.
So shapes, memory and the rank's computation are those of T ranks, and a step's time lacks what crosses links.
Invariant: where all ranks give as many rows to an all-gather, those of another rank differ from one's own
(signs of their columns), so that a router chooses experts for them on its own. Whole numbers, which may be
indices, are taken over as they are; all other calls repeat or cut one's own rows to what is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from services.bench.counting import CountingComm
from splash_core.dist.comm import Comm, RankComms, Transfer
from splash_core.ids import RankId

_SEED = 0x5EED


@dataclass(slots=True)
class AloneComm(Comm):
    """Stands in for the communicator of rank 0 of `num_ranks`."""

    num_ranks: int
    _signs: dict[tuple[int, torch.dtype, torch.device], Tensor] = field(default_factory=dict)

    @property
    @override
    def rank(self) -> RankId:
        return RankId(0)

    @property
    @override
    def size(self) -> int:
        return self.num_ranks

    @override
    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        if self.num_ranks == 1:
            return x_NX
        if len(set(counts)) == 1:
            return self._of_all(x_NX).flatten(0, 1)
        return self._resized(x_NX, sum(counts))

    @override
    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        return self._resized(x_NX, sum(recv_counts))

    @override
    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        return x_NX[: counts[0]].clone()

    @override
    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        for recv in recvs:
            source = next((send.tensor for send in sends if send.tensor.nbytes == recv.tensor.nbytes), None)
            if source is None:
                recv.tensor.zero_()
            else:
                recv.tensor.view(torch.uint8).flatten().copy_(source.view(torch.uint8).flatten())

    @override
    def barrier(self) -> None:
        """Nobody to wait for."""

    @override
    def close(self) -> None:
        """Nothing is held."""

    def _of_all(self, x_NX: Tensor) -> Tensor:
        """`[N, …]` → `[T, N, …]`."""
        if not x_NX.is_floating_point() or x_NX.dim() == 1:
            return x_NX.expand(self.num_ranks, *x_NX.shape).contiguous()
        return x_NX * self._signs_of(x_NX)

    def _resized(self, x_NX: Tensor, count: int) -> Tensor:
        """`count` rows: `x_NX` over and over; zeros where it has none."""
        if not len(x_NX):
            return x_NX.new_zeros((count, *x_NX.shape[1:]))
        times = -(-count // len(x_NX))
        return x_NX[:count].clone() if times <= 1 else x_NX.repeat(times, *[1] * (x_NX.dim() - 1))[:count]

    def _signs_of(self, x_NX: Tensor) -> Tensor:
        """`[T, 1, …, X]` of ±1, of rank 0 all +1; made once for each width."""
        width = x_NX.shape[-1]
        key = (width, x_NX.dtype, x_NX.device)
        if key not in self._signs:
            generator = torch.Generator().manual_seed(_SEED)
            signs = torch.randint(0, 2, (self.num_ranks, width), generator=generator) * 2 - 1
            signs[0] = 1
            self._signs[key] = signs.to(device=x_NX.device, dtype=x_NX.dtype)
        return self._signs[key].view(self.num_ranks, *[1] * (x_NX.dim() - 1), width)


def alone_comms(num_ranks: int, device: torch.device) -> RankComms:
    """What rank 0 of `num_ranks` talks through, where nobody else is."""
    compute = CountingComm(AloneComm(num_ranks))
    return RankComms(compute=compute, transfer=AloneComm(num_ranks), device=device)
