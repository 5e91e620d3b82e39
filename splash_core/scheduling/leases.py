"""Promises of pages to writers outside the group, and their end.

Life of a lease, and who may touch its pages:

    GRANTED      nobody writes yet: a cancel frees the pages at once
    CLAIMED      the writer writes: a cancel only quarantines the pages
    QUARANTINED  no request any more, but the writer may still write: kept until it completes, abandons, or
                 is proven unable to write (dead, or fenced by our ranks); never reused on a timeout
    COMPLETED    all pages written and acknowledged: they belong to the running sequence

Invariant: the pages of a lease are pinned exactly until its writer can no longer write.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum

from splash_core.errors import Conflict
from splash_core.ids import Incarnation, LeaseId, PageId, RequestId, SeqId
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.writers import group_of
from splash_core.scheduling.written import Written
from splash_core.switch.handoff import LandingPage

COMPLETED_REMEMBERED = 4096
"""Completed leases remembered, so that a repeated completion is answered as the first one was."""


class LeaseState(StrEnum):
    """See the module's docstring."""

    GRANTED = "granted"
    CLAIMED = "claimed"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a writer needs to fill a lease."""

    lease: LeaseId
    seq: SeqId
    attempt: int
    incarnation: Incarnation
    pages: tuple[LandingPage, ...]
    """One copy of each page of the prompt, in order of `index`."""

    @property
    def checksum(self) -> str:
        """Of the pages to write."""
        return handoff_checksum(self.pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the writer says when it has written everything."""

    lease: LeaseId
    attempt: int
    incarnation: Incarnation
    writer: str
    num_tokens: int
    checksum: str
    written: Written
    first_token: int
    first_position: int
    """Of `first_token`: the counter of seeded noise, so that decode draws on where prefill stopped."""


@dataclass(slots=True, kw_only=True)
class _Lease:
    grant: Grant
    request_id: RequestId
    num_tokens: int
    pages: tuple[PageId, ...]
    since: float
    attempt: int
    state: LeaseState = LeaseState.GRANTED
    writer: str = ""
    abandoned: set[str] = field(default_factory=set[str])
    """Writers that have stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLease:
    """One open lease, for audits."""

    lease: LeaseId
    state: LeaseState
    owner: RequestId
    """The request that it was granted to."""
    writer: str
    pages: int
    age_s: float
    held: tuple[PageId, ...] = ()
    """Which pages."""


def handoff_checksum(written: Iterable[LandingPage]) -> str:
    """A fingerprint of the pages that were written, so that both groups mean the same ones."""
    text = ";".join(f"{page.index},{page.rank},{page.slot}" for page in sorted(written))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class LeaseBook:
    """All leases of one incarnation of a group. Says what may happen; pages are freed by the caller."""

    def __init__(self, incarnation: Incarnation, arena: ArenaMap) -> None:
        self._incarnation = incarnation
        self._arena = arena
        self._open: dict[LeaseId, _Lease] = {}
        self._completed: dict[LeaseId, Completion] = {}
        self._count = 0

    def new_id(self) -> LeaseId:
        """The next lease id, unique over incarnations."""
        self._count += 1
        return LeaseId(f"{self._incarnation}/{self._count}")

    def grant(
        self, grant: Grant, *, request_id: RequestId, num_tokens: int, pages: tuple[PageId, ...], now: float
    ) -> None:
        """Enter a lease."""
        self._open[grant.lease] = _Lease(
            grant=grant,
            request_id=request_id,
            num_tokens=num_tokens,
            pages=pages,
            since=now,
            attempt=grant.attempt,
        )

    def claim(self, lease: LeaseId, *, attempt: int, incarnation: Incarnation, writer: str) -> None:
        """A writer is about to write. Idempotent for the same writer.

        A writer that must write all pages anew (its own have been computed again) claims the next attempt,
        once its earlier writes are quiet: what is said of an earlier attempt is refused from then on.

        Raises:
            Conflict: the lease has ended, is another's or was abandoned by this writer, or attempt or
                incarnation differ; names the field.
        """
        entry = self._live(lease)
        renewed = entry.state is LeaseState.CLAIMED and entry.writer == writer
        renewed = renewed and attempt == entry.attempt + 1 and incarnation == self._incarnation
        if renewed:
            entry.attempt = attempt
        self._check_same(entry, attempt=attempt, incarnation=incarnation)
        if entry.state is LeaseState.QUARANTINED:
            raise Conflict(f"lease {lease} has ended; its pages must not be written")
        if entry.state is LeaseState.CLAIMED and entry.writer != writer:
            raise Conflict(f"writer: lease {lease} is claimed by {entry.writer!r}, not by {writer!r}")
        if writer in entry.abandoned:
            raise Conflict(f"writer: lease {lease} was abandoned by {writer!r} already")
        entry.state, entry.writer = LeaseState.CLAIMED, writer

    def abandon(self, lease: LeaseId, *, attempt: int, incarnation: Incarnation, writer: str) -> bool:
        """The writer has stopped for good. True when quarantined pages may now be freed.

        Idempotent. A lease whose request still waits may go to another writer. The claim may yet arrive.

        Raises:
            Conflict: the attempt is an older one, or the incarnation differs; names the field.
        """
        entry = self._open.get(lease)
        if entry is None:
            return False
        if incarnation == self._incarnation:
            entry.abandoned.add(writer)
        if entry.writer != writer:
            return False
        self._check_same(entry, attempt=min(attempt, entry.attempt), incarnation=incarnation)
        return self.orphan(lease)

    def orphan(self, lease: LeaseId) -> bool:
        """A claimed lease has no writer any more. True when quarantined pages may now be freed."""
        entry = self._open[lease]
        if entry.state is LeaseState.QUARANTINED:
            return True
        entry.state, entry.writer = LeaseState.GRANTED, ""
        return False

    def held_by(self, writer: str) -> tuple[LeaseId, ...]:
        """Open leases that a writer, or any handoff of a writing group, has claimed."""
        named = ((lease, entry.writer) for lease, entry in self._open.items())
        return tuple(lease for lease, name in named if writer in (name, group_of(name)))

    def is_repeat(self, completion: Completion) -> bool:
        """True for a completion that was accepted before.

        Raises:
            Conflict: the lease was completed otherwise; names the field.
        """
        accepted = self._completed.get(completion.lease)
        if accepted is None:
            return False
        for name in (entry.name for entry in fields(Completion)):
            self._match(completion.lease, name, getattr(accepted, name), getattr(completion, name))
        return True

    def check(self, completion: Completion) -> LeaseState:
        """Compare a completion with its lease.

        Returns:
            CLAIMED when the sequence may run; QUARANTINED when its request has gone.

        Raises:
            Conflict: something differs; names the field.
        """
        entry = self._live(completion.lease)
        self._check_same(entry, attempt=completion.attempt, incarnation=completion.incarnation)
        lease = completion.lease
        if entry.state is LeaseState.GRANTED:
            raise Conflict(f"writer: lease {lease} was not claimed before it was completed")
        self._match(lease, "writer", entry.writer, completion.writer)
        self._match(lease, "num_tokens", entry.num_tokens, completion.num_tokens)
        self._match(lease, "written", Written.whole(len(entry.grant.pages), self._arena), completion.written)
        self._match(lease, "checksum", entry.grant.checksum, completion.checksum)
        self._match(lease, "first_position", entry.num_tokens, completion.first_position)
        return entry.state

    def complete(self, completion: Completion) -> SeqId:
        """Close a lease whose pages are written; `check` has passed."""
        entry = self._open.pop(completion.lease)
        self._completed[completion.lease] = completion
        while len(self._completed) > COMPLETED_REMEMBERED:
            self._completed.pop(next(iter(self._completed)))
        return entry.grant.seq

    def end(self, lease: LeaseId) -> bool:
        """The request has gone. True when the pages may be freed at once; False: they are quarantined."""
        entry = self._open[lease]
        if entry.state is LeaseState.GRANTED:
            del self._open[lease]
            return True
        entry.state = LeaseState.QUARANTINED
        return False

    def forget(self, lease: LeaseId) -> tuple[PageId, ...]:
        """Close a quarantined lease; returns the pages to unpin."""
        return self._open.pop(lease).pages

    def pages(self, lease: LeaseId) -> tuple[PageId, ...]:
        """All pages that an open lease pins."""
        return self._open[lease].pages

    def find(self, seq: SeqId) -> LeaseId | None:
        """The open lease of a sequence."""
        return next((lease for lease, entry in self._open.items() if entry.grant.seq == seq), None)

    def sequence(self, lease: LeaseId) -> SeqId | None:
        """The sequence of an open lease."""
        entry = self._open.get(lease)
        return None if entry is None else entry.grant.seq

    @property
    def writers(self) -> frozenset[str]:
        """All that may write."""
        return frozenset(entry.writer for entry in self._open.values() if entry.writer)

    @property
    def claimed_pages(self) -> int:
        """Page copies that writers may be writing."""
        return sum(len(entry.grant.pages) for entry in self._open.values() if entry.writer)

    def opened(self, now: float) -> tuple[OpenLease, ...]:
        """All open leases, oldest first."""
        return tuple(
            OpenLease(
                lease=lease,
                state=entry.state,
                owner=entry.request_id,
                writer=entry.writer,
                pages=len(entry.pages),
                age_s=now - entry.since,
                held=entry.pages,
            )
            for lease, entry in self._open.items()
        )

    def _live(self, lease: LeaseId) -> _Lease:
        entry = self._open.get(lease)
        if entry is None:
            raise Conflict(f"lease {lease} has ended or was never granted by incarnation {self._incarnation}")
        return entry

    def _check_same(self, entry: _Lease, *, attempt: int, incarnation: Incarnation) -> None:
        self._match(entry.grant.lease, "incarnation", self._incarnation, incarnation)
        self._match(entry.grant.lease, "attempt", entry.attempt, attempt)

    def _match(self, lease: LeaseId, name: str, expected: object, got: object) -> None:
        if expected != got:
            raise Conflict(f"{name}: lease {lease} expects {expected!r}, got {got!r}")
