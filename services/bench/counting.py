"""Counts what crosses ranks, so that tests can hold the code against docs/model.md §4's formulas.

Invariant: only bytes that come *from other ranks* count; what a rank sends itself is free. The counts
follow from the arguments alone, so they are the same on every backend.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from splash_core.dist.comm import Comm, Transfer
from splash_core.dist.passing import PassingComm
from splash_core.dist.rows import row_bytes


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank received from others under one tag."""

    calls: int = 0
    received_bytes: int = 0


class CountingComm(PassingComm):
    """Passes every call to `inner` and adds up the bytes received per tag."""

    def __init__(self, inner: Comm) -> None:
        super().__init__(inner)
        self._traffic: dict[str, Traffic] = {}

    @property
    def traffic(self) -> dict[str, Traffic]:
        """A copy of the counters since the start or the last `reset`."""
        return dict(self._traffic)

    def received_bytes(self, prefix: str = "") -> int:
        """Bytes received under all tags that start with `prefix`."""
        return sum(entry.received_bytes for tag, entry in self._traffic.items() if tag.startswith(prefix))

    def reset(self) -> None:
        """Start counting from zero."""
        self._traffic.clear()

    @override
    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        self._add(tag, (sum(counts) - counts[self.rank]) * row_bytes(x_NX))
        return self._inner.all_gather_rows(x_NX, counts, tag=tag)

    @override
    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        self._add(tag, (sum(recv_counts) - recv_counts[self.rank]) * row_bytes(x_NX))
        return self._inner.all_to_all_rows(x_NX, send_counts, recv_counts, tag=tag)

    @override
    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        self._add(tag, counts[self.rank] * (self.size - 1) * row_bytes(x_NX))
        return self._inner.reduce_scatter_rows(x_NX, counts, tag=tag)

    @override
    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        self._add(tag, sum(recv.tensor.nbytes for recv in recvs if recv.peer != self.rank))
        self._inner.exchange(sends, recvs, tag=tag)

    @override
    def close(self) -> None:
        self._inner.close()

    def _add(self, tag: str, received_bytes: int) -> None:
        before = self._traffic.get(tag, Traffic())
        self._traffic[tag] = Traffic(before.calls + 1, before.received_bytes + received_bytes)
