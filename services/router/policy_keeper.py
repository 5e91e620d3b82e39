"""The policy document of a deployment, as this router has it: the active version, and the way to the next.

Invariant: the active version is one that was valid as a whole, for every group that was known when it came;
an edit that is not changes nothing and says why.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.router.metrics import Metrics
from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.errors import ConfigError, InvalidRequest, Outdated
from splash_core.layout.layout import Layout
from splash_core.policy.document import PolicyDocument
from splash_core.policy.in_force import why_not
from splash_core.policy.snapshot import Phase
from splash_core.policy.versions import Change, History, PolicyVersion, changes

_LOG = logging.getLogger("splash.router")
_MOST_REASON = 2000
"""Characters that are kept of a reason: it may quote what was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What an edit amounts to."""

    version: PolicyVersion
    """The new version; the active one where nothing changes."""
    changes: tuple[Change, ...] = ()
    """Against the active document; against the defaults where there is none."""
    changed: bool = False
    """Whether there is a new version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An edit that was not taken."""

    time_s: float
    source: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """For the admin API."""
        return {"time": self.time_s, "source": self.source, "reason": self.reason}


class PolicyKeeper:
    """Numbers and keeps versions; everybody who edits comes here."""

    def __init__(self, registry: Registry, metrics: Metrics, *, wall: Callable[[], float]) -> None:
        self._registry = registry
        self._metrics = metrics
        self._wall = wall
        self.history = History()
        self.rejected: Rejection | None = None
        """The newest edit that was not taken."""

    @property
    def active(self) -> PolicyVersion | None:
        """The version in force; None while groups keep what they were started with."""
        return self.history.active

    def draft(self, document: PolicyDocument, *, source: str, expected: int | None = None) -> Edit:
        """What an edit would amount to.

        Args:
            document: the whole new one.
            source: who brings it.
            expected: the version that it was made from; None: whatever is active.

        Raises:
            Outdated: another version than `expected` is active.
            InvalidRequest: a known group cannot follow the document; names it and the key.
        """
        active = self.active
        number = 0 if active is None else active.number
        if expected is not None and expected != number:
            raise Outdated(
                f"policy version {number} is active, not {expected}; get it (`splash policy get`), make the "
                f"change there and expect {number}"
            )
        for record in self._registry.records():
            # A group that is never given requests has no say.
            if record.refused is None and (reason := _refusal(record, document)):
                raise InvalidRequest(f"policy: {reason}", param="policy", code="invalid_policy")
        version = self.history.draft(document, source=source, time_s=self._wall())
        if active is not None and active.digest == version.digest:
            return Edit(version=active)
        before = PolicyDocument() if active is None else active.document
        return Edit(version=version, changes=changes(before, document), changed=True)

    def apply(self, document: PolicyDocument, *, source: str, expected: int | None = None) -> Edit:
        """Make a document the active version, if it differs; raises as `draft` does."""
        edit = self.draft(document, source=source, expected=expected)
        if edit.changed:
            self._activate(edit.version)
        return edit

    def withdraw(self, document: PolicyDocument, *, source: str) -> None:
        """Make the active document without a part of it active: what says less than before asks no group."""
        self._activate(self.history.draft(document, source=source, time_s=self._wall()))

    def reject(self, reason: str, *, source: str) -> None:
        """Tell of an edit that was not taken."""
        reason = reason[:_MOST_REASON]
        self.rejected = Rejection(time_s=self._wall(), source=source, reason=reason)
        self._metrics.count("splash_policy_rejected_total", source=source.partition(" ")[0])
        _LOG.warning("policy not changed", extra={"fields": {"source": source, "reason": reason}})

    def heard_of(self, number: int, digest: str, *, first: bool) -> None:
        """A group has told its version. Of a router before this one, it may be above ours: then go above it.

        Args:
            number: of the group's version.
            digest: of its document.
            first: whether the group is new to this router; later on another router would be fought.
        """
        if number <= self.history.floor:
            return
        active = self.active
        ours = active is not None and any(version.number == number for version in self.history.versions)
        if ours and active is not None and self.history.find(number).digest == digest:
            return
        self.history = self.history.above(number)
        if first and active is not None and number >= active.number:
            source = f"{active.source}, above version {number} of another router"
            self._activate(self.history.draft(active.document, source=source, time_s=self._wall()))

    def _activate(self, version: PolicyVersion) -> None:
        self.history = self.history.with_version(version)
        self._metrics.show("splash_policy_version", version.number)
        fields = {"version": version.number, "digest": version.digest, "source": version.source}
        _LOG.info("policy changed", extra={"fields": fields})


def _refusal(record: GroupRecord, document: PolicyDocument) -> str:
    """Why a group that has been described cannot follow a document, or an empty text."""
    offered = offered_by(record)
    return (
        why_not(document, phase=Phase(record.phase), group=record.label, offered=offered) if offered else ""
    )


def offered_by(record: GroupRecord) -> tuple[Layout, ...]:
    """Layouts that a group offers; none while it has not been described."""
    if record.description is None or record.description.phase != record.phase:
        return ()
    return tuple(Layout(entry.layout) for entry in record.description.layouts if entry.feasible)


def as_invalid(error: ConfigError) -> InvalidRequest:
    """A document's error as an answer to whoever sent it."""
    return InvalidRequest(str(error), param="policy", code="invalid_policy")
