"""The best that a backend does for given bytes between ranks: one collective on contiguous buffers.

What a primitive is compared with. Invariant: each way moves exactly the bytes of the traffic, no more.

Legend: T ranks.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from splash_core.dist.comm import Comm, Transfer
from splash_core.ids import RankId
from splash_core.switch.manifest import SwitchManifest, flows_of

Operation = Callable[[int], object]
"""Called with the number of the repetition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTraffic:
    """Bytes that cross ranks in one operation."""

    bytes_TT: tuple[tuple[int, ...], ...]
    """From each rank (row) to each rank (column); nothing on the diagonal."""

    @classmethod
    def gather(cls, num_ranks: int, shard_bytes: int) -> Self:
        """Every rank sends one shard of equal size to every other."""
        ranks = range(num_ranks)
        return cls(bytes_TT=tuple(tuple(shard_bytes * (src != dst) for dst in ranks) for src in ranks))

    @classmethod
    def of_layer(cls, manifest: SwitchManifest, num_ranks: int, slice_bytes: int) -> Self:
        """One layer of a manifest's page moves; `slice_bytes` is one layer of one page."""
        pages = Counter[tuple[RankId, RankId]]()
        for flow in flows_of(manifest.layer_chunks):
            pages[flow.src, flow.dst] += len(flow)
        ranks = [RankId(rank) for rank in range(num_ranks)]
        return cls(
            bytes_TT=tuple(
                tuple(pages[src, dst] * slice_bytes * (src != dst) for dst in ranks) for src in ranks
            )
        )

    @property
    def received(self) -> tuple[int, ...]:
        """Bytes received by each rank, `[T]`."""
        return tuple(sum(column) for column in zip(*self.bytes_TT, strict=True))

    @property
    def is_gather(self) -> bool:
        """True when each rank sends equally much to all others, as an all-gather does."""
        return all(
            len({size for dst, size in enumerate(row) if dst != src}) <= 1
            for src, row in enumerate(self.bytes_TT)
        )


def contiguous_ways(comm: Comm, traffic: OperationTraffic, device: torch.device) -> dict[str, Operation]:
    """Operations that move `traffic` without gather or scatter, by name.

    Args:
        comm: of the rank.
        traffic: what to move.
        device: where buffers live.
    """
    ways = {"exchange": _exchange(comm, traffic, device), "all_to_all": _all_to_all(comm, traffic, device)}
    if traffic.is_gather:
        ways["all_gather"] = _all_gather(comm, traffic, device)
    return ways


def _exchange(comm: Comm, traffic: OperationTraffic, device: torch.device) -> Operation:
    sizes_out, sizes_in = _sizes(comm, traffic)
    sends = [Transfer(RankId(peer), _buffer(size, device)) for peer, size in enumerate(sizes_out) if size]
    recvs = [Transfer(RankId(peer), _buffer(size, device)) for peer, size in enumerate(sizes_in) if size]
    return lambda _: comm.exchange(sends, recvs, tag="bench.exchange")


def _all_to_all(comm: Comm, traffic: OperationTraffic, device: torch.device) -> Operation:
    sizes_out, sizes_in = _sizes(comm, traffic)
    rows = _buffer(sum(sizes_out), device)
    return lambda _: comm.all_to_all_rows(rows, sizes_out, sizes_in, tag="bench.all_to_all")


def _all_gather(comm: Comm, traffic: OperationTraffic, device: torch.device) -> Operation:
    counts = [max(row) for row in traffic.bytes_TT]
    rows = _buffer(counts[comm.rank], device)
    return lambda _: comm.all_gather_rows(rows, counts, tag="bench.all_gather")


def _sizes(comm: Comm, traffic: OperationTraffic) -> tuple[Sequence[int], Sequence[int]]:
    """Bytes to and from each peer of this rank."""
    return traffic.bytes_TT[comm.rank], [row[comm.rank] for row in traffic.bytes_TT]


def _buffer(size: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device=device)
