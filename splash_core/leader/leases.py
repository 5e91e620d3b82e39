"""Leases: pages that a decode group promised to a request and that a prefill group may write.

The fence of design §7. A writer claims a lease before its first write; from then on the pages belong to the
lease until the writer completes or abandons it, or its processes are proven dead. A request that leaves in
between only marks the lease quarantined. Invariant: `ended` is reached exactly once, and only when nobody may
still write; every message may arrive twice.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from splash_core.ids import Incarnation, LeaseId, SeqId
from splash_core.obs.lifeline import ProcessRef
from splash_core.pb import common_pb2

_REMEMBERED = 4096


class LeaseState(StrEnum):
    """Where a lease is in its life."""

    OPEN = "open"
    """Granted, nobody writes."""
    CLAIMED = "claimed"
    """A writer may write."""
    QUARANTINED = "quarantined"
    """The request is gone; a writer may still write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRef:
    """Who writes: a prefill group's incarnation and the processes that touch the pages."""

    group: str
    incarnation: Incarnation
    ranks: tuple[ProcessRef, ...]

    def is_gone(self) -> bool:
        """True with proof that none of its processes can write any more."""
        return bool(self.ranks) and all(rank.is_gone() for rank in self.ranks)


@dataclass(slots=True, kw_only=True)
class Lease:
    """One open lease."""

    lease: LeaseId
    seq: SeqId
    attempt: int
    owner: str
    """The request that holds it."""
    num_pages: int
    num_tokens: int
    checksum: str
    granted_at: float
    state: LeaseState = LeaseState.OPEN
    writer: WriterRef | None = None


def landing_checksum(pages: Iterable[common_pb2.LandingPage]) -> str:
    """A fingerprint of the (page, rank, slot) list, so that both groups mean the same pages."""
    text = ";".join(f"{page.index},{page.rank},{page.slot}" for page in pages)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Ended:
    """A lease whose pages may be used again (or were taken over by decode)."""

    lease: Lease


class LeaseBook:
    """All leases of one decode group's incarnation."""

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._open: dict[LeaseId, Lease] = {}
        self._completed: OrderedDict[LeaseId, str] = OrderedDict()
        """Ended by completion: lease -> writer's incarnation, for a repeated completion."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All leases that are not ended."""
        return tuple(self._open.values())

    def grant(self, lease: Lease) -> None:
        """Enter a lease that the scheduler has reserved pages for."""
        self._open[lease.lease] = lease

    def claim(self, lease_id: LeaseId, incarnation: str, writer: WriterRef) -> str | None:
        """A writer announces itself; returns the reason of a refusal."""
        lease, reason = self._find(lease_id, incarnation)
        if lease is None:
            return reason
        if lease.state is LeaseState.QUARANTINED:
            return f"the request of lease {lease_id} was cancelled"
        current = lease.writer
        if current is not None and current.incarnation != writer.incarnation and not current.is_gone():
            return f"lease {lease_id} is being written by {current.group}"
        lease.writer = writer
        lease.state = LeaseState.CLAIMED
        return None

    def complete(
        self, lease_id: LeaseId, incarnation: str, writer: str, *, checksum: str, num_tokens: int
    ) -> Lease | Ended | str:
        """The writer has written everything.

        Returns:
            The lease when decode takes it over; `Ended` when the request is gone and its pages are now free
            to reuse; a reason when the message does not match (empty reason: an accepted repeat).
        """
        if self._completed.get(lease_id) == writer:
            return ""
        lease, reason = self._find(lease_id, incarnation)
        if lease is None:
            return reason
        if lease.writer is None or lease.writer.incarnation != writer:
            return f"lease {lease_id} was not claimed by writer {writer}"
        if lease.state is LeaseState.QUARANTINED:
            return Ended(self._open.pop(lease_id))
        if checksum != lease.checksum or num_tokens != lease.num_tokens:
            return (
                f"lease {lease_id} expects {lease.num_tokens} tokens with checksum {lease.checksum}, "
                f"got {num_tokens} tokens with {checksum}"
            )
        self._completed[lease_id] = writer
        while len(self._completed) > _REMEMBERED:
            self._completed.popitem(last=False)
        return self._open.pop(lease_id)

    def abandon(self, lease_id: LeaseId, incarnation: str, writer: str) -> Ended | None:
        """The writer will not write any more. Returns the lease if that ended it."""
        lease, _ = self._find(lease_id, incarnation)
        if lease is None or lease.writer is None or lease.writer.incarnation != writer:
            return None
        lease.writer = None
        if lease.state is LeaseState.QUARANTINED:
            return Ended(self._open.pop(lease_id))
        lease.state = LeaseState.OPEN
        return None

    def cancel(self, lease_id: LeaseId) -> Ended | None:
        """The request is gone. Returns the lease if its pages may be used again at once."""
        lease = self._open.get(lease_id)
        if lease is None:
            return None
        if lease.writer is None:
            return Ended(self._open.pop(lease_id))
        lease.state = LeaseState.QUARANTINED
        return None

    def sweep(self, is_gone: Callable[[WriterRef], bool] = WriterRef.is_gone) -> tuple[Ended, ...]:
        """End quarantined leases whose writers are proven dead; reopen claimed ones for another writer."""
        ended: list[Ended] = []
        for lease in self.leases:
            if lease.writer is None or not is_gone(lease.writer):
                continue
            lease.writer = None
            if lease.state is LeaseState.QUARANTINED:
                ended.append(Ended(self._open.pop(lease.lease)))
            else:
                lease.state = LeaseState.OPEN
        return tuple(ended)

    def _find(self, lease_id: LeaseId, incarnation: str) -> tuple[Lease | None, str]:
        if incarnation != self._incarnation:
            return (
                None,
                f"lease {lease_id} is of incarnation {incarnation}; this group is {self._incarnation}",
            )
        lease = self._open.get(lease_id)
        return lease, "" if lease is not None else f"lease {lease_id} has ended"
