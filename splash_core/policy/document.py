"""The policy document of a deployment: sections, their calendars, and a canary; parsed, checked, canonical.

    [all]
    margin = 0.05

    [decode]
    allowed = ["TP", "DP", "DOP"]

    [[decode.calendar]]
    days = ["fri", "sat"]
    from = "22:00"
    to = "06:00"
    time_zone = "Europe/Berlin"
    pin = "DOP"

    [group.decode-1]
    shadow = true

A group takes its keys from `[all]`, then its phase, then its own section; the later one wins. A calendar
entry changes keys of its own section while its hours hold.
Invariant: a document that exists is valid as a whole; an unknown section or key, a wrong type or a value out
of range is an error that names the key. Equal documents have equal digests.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from splash_core.errors import ConfigError
from splash_core.policy.calendar import HOUR_KEYS, Hours, read_hours
from splash_core.policy.keys import Value, Values, plain, read_values
from splash_core.policy.snapshot import Phase
from splash_core.policy.toml import to_toml
from splash_core.policy.trial import CANARY, Trial, read_trial

MAX_DOCUMENT_BYTES = 64 << 10
"""Parsing holds an event loop; the longest sensible document is a tenth of this."""

ALL, GROUP, CALENDAR = "all", "group", "calendar"
_DIGEST_LENGTH = 12
_LINE = re.compile(r"\(at line ([0-9]+),")
_MOST_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarEntry:
    """What changes in a section while hours hold."""

    hours: Hours
    values: Values

    def to_plain(self) -> dict[str, Any]:
        """As a document writes it."""
        return self.hours.to_plain() | {name: plain(value) for name, value in self.values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The keys that one section sets."""

    values: Values = field(default_factory=dict[str, Value])
    calendar: tuple[CalendarEntry, ...] = ()

    def at(self, instant_s: float) -> dict[str, Value]:
        """The keys at an instant; of two entries that hold, the later one wins."""
        values = dict(self.values)
        for entry in self.calendar:
            if entry.hours.hold(instant_s):
                values |= entry.values
        return values

    def ever(self, name: str) -> list[Value]:
        """Every value that the section may give a key."""
        places = (self.values, *(entry.values for entry in self.calendar))
        return [values[name] for values in places if name in values]

    def to_plain(self) -> dict[str, Any]:
        """As a document writes it."""
        table = {name: plain(value) for name, value in self.values.items()}
        if self.calendar:
            table[CALENDAR] = [entry.to_plain() for entry in self.calendar]
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDocument:
    """What an operator has said about all groups. An empty one leaves everything at its default."""

    shared: Section = Section()
    """`[all]`."""
    prefill: Section = Section()
    decode: Section = Section()
    groups: Mapping[str, Section] = field(default_factory=dict[str, Section])
    trial: Trial | None = None
    """`[canary]`."""

    def of_phase(self, phase: Phase) -> Section:
        """A phase's own section."""
        return self.prefill if phase is Phase.PREFILL else self.decode

    def sections(self, phase: Phase, group: str) -> tuple[Section, ...]:
        """The sections that speak of a group, the outermost first."""
        return (self.shared, self.of_phase(phase), self.groups.get(group, Section()))

    @property
    def named_groups(self) -> dict[str, str]:
        """Groups that the document names, by where it does."""
        named = {f"{GROUP}.{name}": name for name in self.groups}
        return named if self.trial is None else named | {f"{CANARY}.group": self.trial.group}

    def values(self, *, phase: Phase, group: str, instant_s: float, trying: bool = False) -> dict[str, Value]:
        """What the document sets for a group at an instant; `trying`: with what its canary tries."""
        found: dict[str, Value] = {}
        for section in self.sections(phase, group):
            found |= section.at(instant_s)
        if trying and self.trial is not None and self.trial.group == group:
            found |= self.trial.values
        return found

    def ever(self, name: str, *, phase: Phase, group: str) -> list[Value]:
        """Every value of a key that the document may come to set for a group."""
        found = [value for section in self.sections(phase, group) for value in section.ever(name)]
        if self.trial is not None and self.trial.group == group and name in self.trial.values:
            found.append(self.trial.values[name])
        return found

    def without_trial(self) -> "PolicyDocument":
        """After a canary that did not do."""
        return replace(self, trial=None)

    def with_promoted(self, phase: Phase) -> "PolicyDocument":
        """After a canary that did: what it tried stands in the section of its phase, calendars as before."""
        assert self.trial is not None
        tried, name = self.trial.values, self.trial.group
        section = self.of_phase(phase)
        groups = dict(self.groups)
        if name in groups:
            own = groups[name]
            # Its own section would hide what is promoted.
            groups[name] = replace(
                own, values={key: value for key, value in own.values.items() if key not in tried}
            )
        # A phase's value goes before all that `[all]` says: what that says for some hours is said again here.
        again = [key for key in tried if key not in section.values]
        kept = tuple(
            replace(entry, values=values)
            for entry in self.shared.calendar
            if (values := {key: entry.values[key] for key in again if key in entry.values})
        )
        promoted = replace(section, values={**section.values, **tried}, calendar=(*kept, *section.calendar))
        return replace(self, groups=groups, trial=None, **{phase.value: promoted})

    def tried_in_hours(self, phase: Phase) -> tuple[str, ...]:
        """Of what its canary tries, the keys that a calendar sets for a group of a phase in its hours."""
        assert self.trial is not None
        sections = self.sections(phase, self.trial.group)
        entries = [entry for section in sections for entry in section.calendar]
        return tuple(key for key in self.trial.values if any(key in entry.values for entry in entries))

    def to_plain(self) -> dict[str, Any]:
        """The canonical document: one form for whatever means the same."""
        named = {ALL: self.shared, Phase.PREFILL.value: self.prefill, Phase.DECODE.value: self.decode}
        table: dict[str, Any] = {name: section.to_plain() for name, section in named.items()}
        table[GROUP] = {name: self.groups[name].to_plain() for name in sorted(self.groups)}
        table[GROUP] = {name: section for name, section in table[GROUP].items() if section}
        table[CANARY] = {} if self.trial is None else self.trial.to_plain()
        return {name: section for name, section in table.items() if section}

    def to_toml(self) -> str:
        """The canonical document as text; parsing it gives the same document."""
        return to_toml(self.to_plain())

    @property
    def digest(self) -> str:
        """Of the canonical document."""
        text = json.dumps(self.to_plain(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def parse_document(text: str, *, source: str = "policy") -> PolicyDocument:
    """A document from TOML text.

    Raises:
        ConfigError: not TOML, or not a valid document; names the key, its value and what is allowed.
    """
    _check_length(text, source=source)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else _with_line(error, text)
        raise ConfigError(f"{source}: not TOML: {reason}") from None
    return read_document(table, source=source)


def _with_line(error: ValueError, text: str) -> str:
    """What is wrong, with the line that it is wrong in: of a key that stands twice, the second place."""
    place, lines = _LINE.search(str(error)), text.rstrip().splitlines()
    number = len(lines) if place is None else int(place[1])
    return f"{error}: {lines[number - 1].strip()[:_MOST_SHOWN]}" if 0 < number <= len(lines) else str(error)


def read_document(table: Mapping[str, Any], *, source: str = "policy") -> PolicyDocument:
    """A document from a parsed table; raises `ConfigError` as `parse_document` does."""
    known = (ALL, *Phase, GROUP, CANARY)
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"{source}: unknown section {name!r}; known: {', '.join(known)}")
        _table(value, where=f"{source}: {name}", header=name)
    groups = {
        name: _section(_table(value, where=f"{source}: group.{name}", header=f"group.{name}"), where=name_of)
        for name, value in cast("Mapping[str, Any]", table.get(GROUP, {})).items()
        if (name_of := f"{source}: group.{name}")
    }
    canary = table.get(CANARY)
    document = PolicyDocument(
        shared=_section(table.get(ALL, {}), where=f"{source}: all"),
        prefill=_section(table.get(Phase.PREFILL.value, {}), where=f"{source}: prefill"),
        decode=_section(table.get(Phase.DECODE.value, {}), where=f"{source}: decode"),
        groups={name: section for name, section in groups.items() if section != Section()},
        trial=None if canary is None else read_trial(canary, where=f"{source}: {CANARY}"),
    )
    # Groups read the canonical text, which may be longer than what was written.
    _check_length(document.to_toml(), source=source)
    return document


def _check_length(text: str, *, source: str) -> None:
    if len(text.encode(errors="surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise ConfigError(f"{source}: longer than {MAX_DOCUMENT_BYTES} bytes; leave out what is default")


def _table(value: object, *, where: str, header: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a section, [{header}]")
    return cast("Mapping[str, Any]", value)


def _section(table: Mapping[str, Any], *, where: str) -> Section:
    entries = table.get(CALENDAR, [])
    if not isinstance(entries, list):
        raise ConfigError(f"{where}.{CALENDAR}: must be a list of entries, [[… {CALENDAR}]]")
    return Section(
        values=read_values(table, where=where, others=(CALENDAR,)),
        calendar=tuple(
            _entry(entry, where=f"{where}.{CALENDAR}[{index}]")
            for index, entry in enumerate(cast("list[object]", entries))
        ),
    )


def _entry(value: object, *, where: str) -> CalendarEntry:
    table = _table(value, where=where, header=f"[… {CALENDAR}]")
    values = read_values(table, where=where, others=HOUR_KEYS)
    if not values:
        raise ConfigError(f"{where}: changes no key; add one, or leave the entry out")
    return CalendarEntry(hours=read_hours(table, where=where), values=values)
