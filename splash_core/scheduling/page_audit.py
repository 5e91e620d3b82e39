"""Every page of a group: where it is, who holds it, who may write it, who reads it, and since when.

Invariant: each page that holds slots appears exactly once, with somebody who answers for it.
"""

from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from splash_core.ids import LeaseId, PageId, RequestId
from splash_core.layout.ownership import PageTable
from splash_core.scheduling.leases import OpenLease
from splash_core.scheduling.pushes import OpenPush
from splash_core.scheduling.sequence import Roster

QUARANTINED = "quarantined"
"""No sequence holds the page any more, but somebody outside may still write or read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAuditData:
    """One page."""

    page: PageId
    slots: tuple[int, ...]
    """On each rank; `NO_SLOT` where it has no copy."""
    owner: RequestId
    """The request that holds it, or held it."""
    state: str
    """Of the sequence, or `QUARANTINED`."""
    lease: LeaseId | None
    writer: str
    """Who may write it; empty if nobody may."""
    pushes: tuple[int, ...]
    """Pushes that read it."""
    age_s: float
    """Since the sequence came, the lease was granted, or the oldest push was ordered."""


def page_audit(
    table: PageTable, roster: Roster, leases: Seq[OpenLease], pushes: Seq[OpenPush], *, now: float
) -> tuple[PageAuditData, ...]:
    """All pages that hold slots, in order of creation."""
    held = {page: sequence for sequence in roster for page in sequence.pages}
    leased = {page: lease for lease in leases for page in lease.held}
    read: defaultdict[PageId, list[OpenPush]] = defaultdict(list)
    for push in pushes:
        for page in push.pages:
            read[page].append(push)
    entries: list[PageAuditData] = []
    for page in table.pages:
        sequence, lease, readers = held.get(page), leased.get(page), read[page]
        # Whoever answers for it, in this order: its sequence, its lease, the push that keeps it.
        if sequence is not None:
            owner, state, age_s = sequence.request_id, sequence.state.value, now - sequence.since
        elif lease is not None:
            owner, state, age_s = lease.owner, QUARANTINED, lease.age_s
        else:
            owner, state, age_s = readers[0].owner, QUARANTINED, readers[0].age_s
        entries.append(
            PageAuditData(
                page=page,
                slots=table.row(page),
                owner=owner,
                state=state,
                lease=None if lease is None else lease.lease,
                writer="" if lease is None else lease.writer,
                pushes=tuple(push.push for push in readers),
                age_s=age_s,
            )
        )
    return tuple(entries)
