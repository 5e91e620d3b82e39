"""A group's audit in wire form."""

from collections.abc import Iterable

from splash_core.leader.part import Wait
from splash_core.pb import control_pb2
from splash_core.scheduling.audit import GroupAuditData, RankAuditData
from splash_core.scheduling.leases import OpenLease
from splash_core.scheduling.page_audit import PageAuditData
from splash_core.scheduling.pushes import OpenPush


def audit_to_pb(audit: GroupAuditData, waits: Iterable[Wait], *, phase: str) -> control_pb2.GroupAudit:
    """Every slot, lease, push and wait; every page, if the audit has them."""
    return control_pb2.GroupAudit(
        group=audit.group,
        phase=phase,
        layout=audit.layout.value,
        layout_epoch=audit.epoch,
        ranks=[_rank(rank) for rank in audit.ranks],
        leases=[_lease(lease) for lease in audit.leases],
        pushes=[_push(push) for push in audit.pushes],
        pages=[_page(page) for page in audit.pages],
        borrowed_pages_used=audit.borrowed_pages_used,
        pages_held=audit.pages_held,
        waits=[
            control_pb2.WaitAudit(subject=wait.subject, waits_for=wait.waits_for, age_s=wait.age_s)
            for wait in waits
        ],
    )


def _rank(rank: RankAuditData) -> control_pb2.RankAudit:
    return control_pb2.RankAudit(
        rank=rank.rank,
        slots=rank.slots,
        free=rank.free,
        weights=rank.weights,
        kv=rank.kv,
        quarantined=rank.quarantined,
        precopied=rank.precopied,
    )


def _lease(lease: OpenLease) -> control_pb2.LeaseAudit:
    return control_pb2.LeaseAudit(
        lease=lease.lease,
        state=lease.state.value,
        owner=lease.owner,
        writer=lease.writer,
        pages=lease.pages,
        age_s=lease.age_s,
    )


def _push(push: OpenPush) -> control_pb2.PushAudit:
    return control_pb2.PushAudit(
        push=push.push, owner=push.owner, lease=push.lease, pages=len(push.pages), age_s=push.age_s
    )


def _page(page: PageAuditData) -> control_pb2.PageAudit:
    return control_pb2.PageAudit(
        page=page.page,
        slots=page.slots,
        owner=page.owner,
        state=page.state,
        lease=page.lease or "",
        writer=page.writer,
        pushes=page.pushes,
        age_s=page.age_s,
    )
