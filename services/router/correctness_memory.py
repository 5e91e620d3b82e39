"""Lets groups keep what a router knows of its probes: the router itself has no state that outlives it.

Invariant: a group is handed nothing unless it has just told what it keeps, and what it told is in what it is
handed; so no router undoes a reset, or an older reference, that it could have heard of.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.errors import ConfigError, InvalidRequest, SplashError
from splash_core.policy.correctness_memory import ProbeMemory, memory_from, memory_of, recalled, trimmed
from splash_core.policy.correctness_notes import ProbeNotes

_LOG = logging.getLogger("splash.router")
_NAME = "probes"
"""Under which groups keep it."""
_TIMEOUT_S = 5.0
_RETRY_S = 10.0


@dataclass(slots=True)
class _Kept:
    """What one life of a group has, as far as is known."""

    incarnation: str
    keeps: bool = True
    """Its version knows how to."""
    told_s: float | None = None
    """When it last told, monotonic; None: it has not yet been asked with success."""
    text: str = ""
    memory: ProbeMemory | None = None
    """What that says; None where it says nothing that can be understood."""
    handed: str = ""
    refused: str = ""
    """What it did not take."""
    not_before_s: float = -math.inf
    """After a failure, monotonic."""

    def is_due(self, text: str, *, now_s: float, since_s: float) -> bool:
        """Whether it is to be asked now: it has not told since then, or is to be handed a text."""
        if not self.keeps or now_s < self.not_before_s:
            return False
        settled = text in (self.text, self.handed, self.refused)
        return self.told_s is None or self.told_s < since_s or not settled

    def lacks(self, text: str, memory: ProbeMemory) -> bool:
        """Whether, after what it has told, it is to be handed a text, which says `memory`."""
        if text in ("", self.text, self.refused):
            return False
        theirs = None if self.memory is None else (self.memory.reset_s, self.memory.references)
        # Of good marks the last ones handed over count: two routers do not hand over theirs in turns.
        return self.handed != text or theirs != (memory.reset_s, memory.references)


@dataclass(slots=True, kw_only=True)
class MemoryInGroups:
    """What the groups of one router keep for it."""

    registry: Registry
    clock: Callable[[], float]
    wall: Callable[[], float]
    _reset_s: float = 0.0
    _kept: dict[str, _Kept] = field(default_factory=dict[str, _Kept])
    """By address, since the newest reset."""
    _memory: ProbeMemory = field(default_factory=ProbeMemory)
    """What groups are to keep."""
    _text: str = ""
    """Which says that; empty: nothing is known."""
    _notes: ProbeNotes | None = None
    """Of which it was made."""

    def reset(self) -> None:
        """What was kept until now counts no longer."""
        self._reset_s, self._kept, self._notes = self.wall(), {}, None

    def untold(self) -> list[str]:
        """Groups that answer, but could not yet be asked what they keep: it may be another reference."""
        kept = [(record.label, self._of(record)) for record in self._answering()]
        return [label for label, one in kept if one.keeps and one.told_s is None]

    async def exchange(self, notes: ProbeNotes, *, since_s: float) -> ProbeNotes:
        """Ask groups what they keep, hand over what they lack; the notes with all of it.

        Args:
            notes: the router's own.
            since_s: who has told before that, monotonic, is asked again: another router may have been there.
        """
        notes, now_s, since = self._trimmed(notes), self.clock(), self._kept
        self._write(notes)
        kept = [(record, self._of(record)) for record in self._answering()]
        due = [(record, one) for record, one in kept if one.is_due(self._text, now_s=now_s, since_s=since_s)]
        if not due:
            return notes
        told = await asyncio.gather(*(self._ask(record, one) for record, one in due))
        if self._kept is not since:
            return notes  # reset meanwhile
        heard = [entry for entry, answered in zip(due, told, strict=True) if answered]
        known = len(notes.references)
        memories = [one.memory for _, one in heard if one.memory is not None]
        notes, self._reset_s = recalled(notes, memories, reset_s=self._reset_s)
        notes = self._trimmed(notes)
        if (found := len(notes.references) - known) > 0:
            _LOG.info("reference answers recalled", extra={"fields": {"references": found}})
        self._write(notes)
        lacking = [(record, one) for record, one in heard if one.lacks(self._text, self._memory)]
        await asyncio.gather(*(self._hand_over(record, one) for record, one in lacking))
        return notes

    def _answering(self) -> list[GroupRecord]:
        """Groups that can be asked; what they keep is of use whether or not they may serve."""
        records = self.registry.records()
        return [record for record in records if record.error is None and record.description is not None]

    def _of(self, record: GroupRecord) -> _Kept:
        """What is known of the present life of a group."""
        incarnation = "" if record.description is None else record.description.incarnation
        kept = self._kept.get(record.address)
        if kept is None or kept.incarnation != incarnation:
            kept = self._kept[record.address] = _Kept(incarnation)
        return kept

    def _trimmed(self, notes: ProbeNotes) -> ProbeNotes:
        described = [record.description for record in self.registry.records()]
        served = {(one.abi.model, one.abi.dtype) for one in described if one is not None}
        return trimmed(notes, served=served)

    def _write(self, notes: ProbeNotes) -> None:
        """Bring the text up to date; it is long, and looks are many."""
        if notes is not self._notes or self._reset_s != self._memory.reset_s:
            self._notes, self._memory = notes, memory_of(notes, reset_s=self._reset_s)
            self._text = "" if self._memory == ProbeMemory() else self._memory.to_text()

    async def _ask(self, record: GroupRecord, kept: _Kept) -> bool:
        """Have a group tell what it keeps; whether it has."""
        try:
            text = await self.registry.workers[record.address].kept(_NAME, timeout_s=_TIMEOUT_S)
        except SplashError as error:
            kept.not_before_s = self.clock() + _RETRY_S
            _LOG.info("a group could not be asked what it keeps of probes", extra=_fields(record, error))
            return False
        first, kept.told_s = kept.told_s is None, self.clock()
        if text is None:
            kept.keeps = False
            fields = {"group": record.label, "remedy": "restart it with this router's version"}
            _LOG.info("a group cannot keep what is known of probes", extra={"fields": fields})
            return False
        if first or text != kept.text:
            kept.text, kept.memory = text, _understood(record, text)
        if not first and kept.memory is not None:
            # By now the router's own marks are better, and what it has forgotten stays so.
            kept.memory = replace(kept.memory, good=())
        return True

    async def _hand_over(self, record: GroupRecord, kept: _Kept) -> None:
        text, memory = self._text, self._memory
        try:
            await self.registry.workers[record.address].keep(_NAME, text, timeout_s=_TIMEOUT_S)
        except InvalidRequest as error:
            kept.refused = text
            _LOG.warning("a group refuses to keep what is known of probes", extra=_fields(record, error))
        except SplashError as error:
            kept.not_before_s = self.clock() + _RETRY_S
            _LOG.info("a group does not keep what is known of probes", extra=_fields(record, error))
        else:
            kept.text, kept.memory, kept.handed = text, memory, text


def _understood(record: GroupRecord, text: str) -> ProbeMemory | None:
    """What a text says; None where it is of another version, and will be written anew."""
    try:
        return memory_from(text) if text else None
    except ConfigError as error:
        _LOG.warning("what a group keeps of probes is not understood", extra=_fields(record, error))
        return None


def _fields(record: GroupRecord, error: Exception) -> dict[str, object]:
    return {"fields": {"group": record.label, "cause": str(error)}}
