"""Versions of the policy document, numbered as they came into force, and what changed between two of them.

Invariant: numbers only grow, and a version is never changed; going back makes a new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from splash_core.errors import NotFound
from splash_core.policy.document import PolicyDocument

_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """A document that came into force."""

    number: int
    time_s: float
    """When, in seconds since the epoch."""
    source: str
    """Who brought it: a file, the admin API, the start, a canary, a roll-back."""
    document: PolicyDocument
    digest: str
    """Of the document: equal documents have equal ones."""

    def summary(self) -> dict[str, Any]:
        """Everything but the document."""
        return {"version": self.number, "digest": self.digest, "source": self.source, "time": self.time_s}

    def to_json(self) -> dict[str, Any]:
        """Everything: the document as a table and as text."""
        document = self.document
        return self.summary() | {"document": document.to_plain(), "text": document.to_toml()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key that differs between two documents; None where one does not set it."""

    key: str
    before: Any
    after: Any

    def to_json(self) -> dict[str, Any]:
        """For the admin API."""
        return {"key": self.key, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class History:
    """The newest versions, oldest first. An empty one is of a router that was given no policy."""

    versions: tuple[PolicyVersion, ...] = ()
    floor: int = 0
    """Numbers up to this are taken: groups have them from a router before this one."""

    @property
    def active(self) -> PolicyVersion | None:
        """The version in force, if there is one."""
        return self.versions[-1] if self.versions else None

    @property
    def next_number(self) -> int:
        """What the next version will be called."""
        return 1 + max(self.floor, self.active.number if self.active is not None else 0)

    def draft(self, document: PolicyDocument, *, source: str, time_s: float) -> PolicyVersion:
        """What `document` would be as the next version."""
        return PolicyVersion(
            number=self.next_number, time_s=time_s, source=source, document=document, digest=document.digest
        )

    def with_version(self, version: PolicyVersion) -> "History":
        """With a draft of this history in force."""
        assert version.number == self.next_number, "a version is the next of its history"
        return History((*self.versions, version)[-_KEPT:], self.floor)

    def above(self, number: int) -> "History":
        """The same, knowing that `number` is taken."""
        return History(self.versions, max(self.floor, number))

    def find(self, number: int) -> PolicyVersion:
        """A version by its number; raises `NotFound` with those that are kept."""
        for version in self.versions:
            if version.number == number:
                return version
        numbers = [version.number for version in self.versions]
        kept = f"{numbers[0]} to {numbers[-1]} are kept" if numbers else "there is none yet"
        raise NotFound(f"policy version {number} does not exist; {kept}", param="version")


def changes(before: PolicyDocument, after: PolicyDocument) -> tuple[Change, ...]:
    """What differs between two documents, key by key, in the documents' order."""
    old, new = dict(_flat(before.to_plain())), dict(_flat(after.to_plain()))
    return tuple(
        Change(key=key, before=old.get(key), after=new.get(key))
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    )


def change_text(change: Mapping[str, Any]) -> str:
    """A change (in the form of `Change.to_json`) in one line."""
    before, after = (_shown(change[side]) for side in ("before", "after"))
    return f"{change['key']}: {before} → {after}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, cast("list[object]", value)))
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _flat(table: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every key with its path, for example `decode.calendar[0].pin`."""
    if isinstance(table, Mapping):
        items = cast("Mapping[str, Any]", table).items()
        found = [_flat(value, f"{path}.{name}" if path else name) for name, value in items]
        return [entry for entries in found for entry in entries]
    entries: list[Any] = cast("list[Any]", table) if isinstance(table, list) else []
    if any(isinstance(entry, Mapping) for entry in entries):
        found = [_flat(entry, f"{path}[{index}]") for index, entry in enumerate(entries)]
        return [entry for part in found for entry in part]
    return [(path, table)]
