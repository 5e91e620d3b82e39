"""The answer of `/admin/audit`."""

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from splash_core.pb import control_pb2

_RANK = ("rank", "slots", "free", "weights", "kv", "quarantined", "precopied")
_LEASE = ("lease", "state", "owner", "writer", "pages", "age_s")
_PUSH = ("push", "owner", "lease", "pages", "age_s")
_WAIT = ("subject", "waits_for", "age_s")
_PAGE = ("page", "slots", "owner", "state", "lease", "writer", "pushes", "age_s")


def audit_report(audits: list[control_pb2.GroupAudit]) -> dict[str, Any]:
    """All groups; `pages_held` counts pages and what a fence still holds."""
    held = sum(audit.pages_held + sum(rank.quarantined for rank in audit.ranks) for audit in audits)
    borrowed = sum(audit.borrowed_pages_used for audit in audits)
    groups = [_group(audit) for audit in audits]
    return {"pages_held": held, "borrowed_pages_used": borrowed, "groups": groups}


def _group(audit: control_pb2.GroupAudit) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "group": audit.group,
        "phase": audit.phase,
        "layout": audit.layout,
        "layout_epoch": audit.layout_epoch,
        "ranks": _rows(audit.ranks, _RANK),
        "leases": _rows(audit.leases, _LEASE),
        "pushes": _rows(audit.pushes, _PUSH),
        "waits": _rows(audit.waits, _WAIT),
    }
    if audit.pages:
        entry["pages"] = _rows(audit.pages, _PAGE)
    return entry


def _rows(messages: Iterable[Message], fields: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{field: _plain(getattr(message, field)) for field in fields} for message in messages]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else list(value)
