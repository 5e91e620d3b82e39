"""Lets groups keep what a router knows of its probes: the router itself has no state that outlives it.

Invariant: no group is probed before every group that answers has been asked what it keeps, and each that
answers is handed whatever the others have not.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.errors import SplashError
from splash_core.policy.correctness_memory import ProbeMemory, memory_from, memory_of, recalled
from splash_core.policy.correctness_notes import ProbeNotes

_LOG = logging.getLogger("splash.router")
_NAME = "probes"
"""Under which groups keep it."""
_TIMEOUT_S = 5.0
_RETRY_S = 10.0


@dataclass(slots=True)
class _Kept:
    """What one life of a group has."""

    incarnation: str
    text: str = ""
    not_before_s: float = 0.0
    """After a failure, monotonic."""


@dataclass(slots=True, kw_only=True)
class MemoryInGroups:
    """What the groups of one router keep for it."""

    registry: Registry
    clock: Callable[[], float]
    wall: Callable[[], float]
    _reset_s: float = 0.0
    _kept: dict[str, _Kept] = field(default_factory=dict[str, _Kept])
    """By address."""
    _text: str = ""
    """What groups are to keep; empty: nothing is known."""
    _notes: ProbeNotes | None = None
    """Of which that text is."""
    _written_reset_s: float = 0.0

    def reset(self) -> None:
        """What was kept until now counts no longer."""
        self._reset_s = self.wall()

    async def exchange(self, notes: ProbeNotes) -> ProbeNotes:
        """Ask groups that have come what they keep, hand over what they lack; the notes with all of it."""
        records = [record for record in self.registry.records() if _answers(record)]
        come = [record for record in records if self._is_new(record)]
        if come:
            memories = await asyncio.gather(*(self._recall(record) for record in come))
            known = len(notes.references)
            notes, self._reset_s = recalled(notes, [*filter(None, memories)], reset_s=self._reset_s)
            if (found := len(notes.references) - known) > 0:
                _LOG.info("reference answers recalled", extra={"fields": {"references": found}})
        self._write(notes)
        if self._text:
            text, now_s = self._text, self.clock()
            lacking = [record for record in records if self._lacks(record, text, now_s)]
            await asyncio.gather(*(self._hand_over(record, text) for record in lacking))
        return notes

    def _write(self, notes: ProbeNotes) -> None:
        """Bring the text up to date; it is long, and looks are many."""
        if notes is not self._notes or self._reset_s != self._written_reset_s:
            memory = memory_of(notes, reset_s=self._reset_s)
            self._text = "" if memory == ProbeMemory() else memory.to_text()
            self._notes, self._written_reset_s = notes, self._reset_s

    def _is_new(self, record: GroupRecord) -> bool:
        kept = self._kept.get(record.address)
        return kept is None or kept.incarnation != _incarnation(record)

    def _lacks(self, record: GroupRecord, text: str, now_s: float) -> bool:
        kept = self._kept[record.address]
        return kept.text != text and now_s >= kept.not_before_s

    async def _recall(self, record: GroupRecord) -> ProbeMemory | None:
        """What a group keeps; None where that is nothing that can be read."""
        kept = self._kept[record.address] = _Kept(_incarnation(record))
        try:
            kept.text = await self.registry.workers[record.address].kept(_NAME, timeout_s=_TIMEOUT_S)
            return memory_from(kept.text) if kept.text else None
        except SplashError as error:
            # A leader of an older version keeps nothing; whatever else it is, the other groups are asked too.
            _tell("what a group keeps of probes could not be read", record, error)
            return None

    async def _hand_over(self, record: GroupRecord, text: str) -> None:
        kept = self._kept[record.address]
        try:
            await self.registry.workers[record.address].keep(_NAME, text, timeout_s=_TIMEOUT_S)
        except SplashError as error:
            kept.not_before_s = self.clock() + _RETRY_S
            _tell("a group does not keep what is known of probes", record, error)
            return
        kept.text = text


def _answers(record: GroupRecord) -> bool:
    """Whether it could be asked; what it keeps is of use whether or not it may serve."""
    return record.error is None and record.description is not None


def _incarnation(record: GroupRecord) -> str:
    return "" if record.description is None else record.description.incarnation


def _tell(what: str, record: GroupRecord, error: Exception) -> None:
    _LOG.info(what, extra={"fields": {"group": record.label, "cause": str(error)}})
