"""The answer of `/admin/audit`.

Invariant: a sum is of all groups; where one cannot be asked there is none.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from services.router.records import GroupRecord
from services.router.worker import Worker
from splash_core.errors import DeadlineExceeded, SplashError
from splash_core.pb import control_pb2

_PATIENCE_S = 10.0
"""A group that hangs must not keep the others' answers back."""
_RANK = ("rank", "slots", "free", "weights", "kv", "quarantined", "precopied")
_LEASE = ("lease", "state", "owner", "writer", "pages", "age_s")
_PUSH = ("push", "owner", "lease", "pages", "age_s")
_WAIT = ("subject", "waits_for", "age_s")
_PAGE = ("page", "slots", "owner", "state", "lease", "writer", "pushes", "age_s")


async def audit_report(
    records: Sequence[GroupRecord], workers: Mapping[str, Worker], *, pages: bool
) -> dict[str, Any]:
    """All groups that answer, and why others do not; sums are None while one does not."""
    answers = await asyncio.gather(*(_ask(workers[record.address], pages=pages) for record in records))
    audits = [answer for answer in answers if not isinstance(answer, SplashError)]
    held, borrowed = sum(map(_held, audits)), sum(audit.borrowed_pages_used for audit in audits)
    complete = len(audits) == len(answers)
    return {
        "pages_held": held if complete else None,
        "borrowed_pages_used": borrowed if complete else None,
        "groups": [_group(audit) for audit in audits],
        "not_asked": [
            {"group": record.label, "phase": record.phase, "cause": str(answer)}
            for record, answer in zip(records, answers, strict=True)
            if isinstance(answer, SplashError)
        ],
    }


async def _ask(worker: Worker, *, pages: bool) -> control_pb2.GroupAudit | SplashError:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await worker.audit(pages=pages)
    except TimeoutError:
        return DeadlineExceeded(f"did not answer within {_PATIENCE_S:g} s: see its log")
    except SplashError as error:
        return error


def _held(audit: control_pb2.GroupAudit) -> int:
    """Pages, and what a fence still holds."""
    return audit.pages_held + sum(rank.quarantined for rank in audit.ranks)


def _group(audit: control_pb2.GroupAudit) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "group": audit.group,
        "phase": audit.phase,
        "layout": audit.layout,
        "layout_epoch": audit.layout_epoch,
        "pages_held": _held(audit),
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
