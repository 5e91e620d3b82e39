"""A communicator whose calls take as long as one says, and a record of when they did.

Sleeping takes no processor time, so what the delays prove does not depend on how busy the machine is.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from splash_core.dist.comm import Comm, RankComms, Transfer
from splash_core.ids import RankId


@dataclass(frozen=True)
class Span:
    tag: str
    begin: float
    end: float


@dataclass
class DelayComm(Comm):
    """Sleeps after each call whose tag has a delay; seconds."""

    inner: Comm
    delays: Mapping[str, float]
    spans: list[Span] = field(default_factory=list)

    @property
    def rank(self) -> RankId:
        return self.inner.rank

    @property
    def size(self) -> int:
        return self.inner.size

    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        began = time.perf_counter()
        result = self.inner.all_gather_rows(x_NX, counts, tag=tag)
        self._pause(tag, began)
        return result

    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        began = time.perf_counter()
        result = self.inner.all_to_all_rows(x_NX, send_counts, recv_counts, tag=tag)
        self._pause(tag, began)
        return result

    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        began = time.perf_counter()
        result = self.inner.reduce_scatter_rows(x_NX, counts, tag=tag)
        self._pause(tag, began)
        return result

    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        began = time.perf_counter()
        self.inner.exchange(sends, recvs, tag=tag)
        self._pause(tag, began)

    def barrier(self) -> None:
        self.inner.barrier()

    def close(self) -> None:
        self.inner.close()

    def _pause(self, tag: str, began: float) -> None:
        if tag in self.delays:
            time.sleep(self.delays[tag])
            self.spans.append(Span(tag, began, time.perf_counter()))


def delayed(comms: RankComms, delays: Mapping[str, float]) -> tuple[RankComms, DelayComm, DelayComm]:
    """Both communicators with the delays; also each by itself, for its record."""
    compute, transfer = DelayComm(comms.compute, delays), DelayComm(comms.transfer, delays)
    return RankComms(compute=compute, transfer=transfer, device=comms.device), compute, transfer
