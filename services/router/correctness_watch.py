"""Probes: fixed prompts are asked again and again, and a layout that changes an answer is left.

Invariant: at most one round is under way in a router, users' requests go before it, and it is given up when a
group drains, fills up, or takes too long.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.router.correctness_check import Checker
from services.router.correctness_hold import Holder
from services.router.correctness_memory import MemoryInGroups
from services.router.correctness_status import PairStatus
from services.router.metrics import Metrics
from services.router.registry import Registry
from services.router.weights import why_out, why_reference_left
from splash_core.dispatch.placement import Pair, covering
from splash_core.errors import SplashError
from splash_core.obs.vitals import VitalTasks
from splash_core.policy.correctness_notes import (
    Due,
    PairMark,
    PairName,
    ProbeFinding,
    ProbeNotes,
    ProbeVerdict,
)
from splash_core.policy.correctness_record import DriftRecord
from splash_core.policy.snapshot import Phase

_LOG = logging.getLogger("splash.router")
_KEPT = 64
_RETRY_S = 10.0
"""After whatever came to nothing."""
_HEARD_S = 60.0
"""What groups keep may be out of date by so much, but not when answers are compared with it."""
_GONE_S = 600.0
"""A group that has not answered for so long has gone, and what was known of it goes, too."""
_URGENCY = (Due.SWITCH, Due.RESTART, Due.FIRST, Due.PERIOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A pair that is asked, or to be asked."""

    pair: Pair
    mark: PairMark
    status: PairStatus


@dataclass(slots=True, kw_only=True)
class ProbeWatch:
    """What asks the probes of one router."""

    registry: Registry
    checker: Checker
    holder: Holder
    memory: MemoryInGroups
    metrics: Metrics
    every_s: float
    """Between two checks of a pair; 0: there are none at all."""
    clock: Callable[[], float]
    _notes: ProbeNotes = field(default_factory=ProbeNotes)
    _pairs: dict[PairName, PairStatus] = field(default_factory=dict[PairName, PairStatus])
    _records: deque[DriftRecord] = field(default_factory=lambda: deque[DriftRecord](maxlen=_KEPT))
    _ended_s: float = 0.0
    """When the newest check ended: what groups told before is out of date."""
    _not_before_s: float = 0.0
    """After an error of its own."""
    _task: "asyncio.Task[None] | None" = None

    async def start(self, vitals: VitalTasks) -> None:
        """Follow the groups from now on; `vitals` are of the router."""
        if self.every_s > 0:
            self._task = vitals.keep("probes", self._follow())

    async def stop(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # a look that goes wrong must not end all that come later
                self._not_before_s = self.clock() + _RETRY_S
                _LOG.exception("probes could not be looked after")
            await self.registry.wait_for_change()

    async def look(self) -> None:
        """Make the most urgent check that is due and possible, if there is one."""
        now_s = self.clock()
        if now_s < self._not_before_s:
            return
        if not await self._hear(since_s=now_s - _HEARD_S):
            return
        pairs = self.registry.pairs()
        self._tidy(pairs, now_s)
        calls = self._asked(pairs, now_s)
        self._settle()
        for due, call in self._due(calls, now_s):
            if now_s < call.status.not_before_s:
                continue
            obstacle = self._obstacle(call)
            self._obstruct(call.status, obstacle or "")
            if obstacle is None:
                if await self._hear(since_s=now_s):
                    await self._check(call, due)
                return

    async def _hear(self, *, since_s: float) -> bool:
        """Learn what groups keep, of those that have not told since then; False if it was reset meanwhile."""
        before = self._notes
        notes = await self.memory.exchange(before, since_s=since_s)
        if self._notes is not before:
            return False
        self._notes = notes
        return True

    def _obstacle(self, call: _Call) -> str | None:
        """Why a pair is not to be asked now; None where it is."""
        if self._notes.reference(call.mark) is None and (untold := self.memory.untold()):
            who = " and ".join(untold)
            return f"{who} cannot be asked what it keeps: there may be a reference among it"
        return self.checker.questioner.obstacle(call.pair, call.mark.prompts)

    def _tidy(self, pairs: Sequence[Pair], now_s: float) -> None:
        """Forget groups that have gone, and pairs that can serve together no longer."""
        records = self.registry.records()
        here = {record.label for record in records if now_s - record.answered_at_s < _GONE_S}
        ready = {record.label for record in records if record.trouble is None}
        together = {pair.names for pair in pairs}
        for name, status in list(self._pairs.items()):
            if not {*name} <= here:
                self._end(status, f"{' and '.join(sorted({*name} - here))} has gone")
            elif name not in together and {*name} <= ready:
                self._end(status, "the two do not fit together any more")
        if gone := set(self._notes.checked) - here:
            self._notes = self._notes.without(gone)

    def _end(self, status: PairStatus, cause: str) -> None:
        """A pair does not exist any more, and nor does its alarm."""
        if status.alarm is not None:
            fields = {"pair": list(status.pair), "cause": cause, "held": dict(status.held)}
            _LOG.warning("alarm of a pair that has ended", extra={"fields": fields})
        status.forget()
        del self._pairs[status.pair]

    def _asked(self, pairs: Sequence[Pair], now_s: float) -> list[_Call]:
        """Those that are asked: few that have every group, and any whose alarm waits for right answers."""
        cover = covering(pairs)
        alarmed = {name for name, status in self._pairs.items() if status.alarm is not None}
        asked: list[_Call] = []
        for pair in (*cover, *(pair for pair in pairs if pair.names in alarmed and pair not in cover)):
            mark = self.checker.mark(pair)
            if mark is not None:
                status = self._pairs.setdefault(mark.name, PairStatus(mark.name, self.metrics))
                asked.append(_Call(pair=pair, mark=mark, status=status))
        names = {call.mark.name for call in asked}
        for name, status in self._pairs.items():
            status.asked = name in names
            if not status.asked:
                status.obstruct("", now_s=now_s)
        return asked

    def _settle(self) -> None:
        """End alarms that are over."""
        pins = {
            record.label: record.state.policy.pinned
            for record in self.registry.records()
            if record.state is not None
        }
        for status in self._pairs.values():
            status.settle(pins)
            status.show()

    def _due(self, asked: Sequence[_Call], now_s: float) -> list[tuple[Due, _Call]]:
        """What is to be asked, the most urgent first."""
        found: list[tuple[Due, _Call]] = []
        for call in asked:
            loads = call.pair.prefill, call.pair.decode
            if min(self.registry.record(load.address).asked_at_s for load in loads) < self._ended_s:
                continue
            call.status.mark = call.mark
            due = self._notes.due(call.mark, now_s=now_s, every_s=self.every_s)
            if due is None:
                call.status.obstruct("", now_s=now_s)
            else:
                found.append((due, call))
        found.sort(key=lambda entry: (_URGENCY.index(entry[0]), self._notes.asked_s(entry[1].mark.name)))
        return found

    async def _check(self, call: _Call, due: Due) -> None:
        """One check, and what follows from it."""
        notes, status = self._notes, call.status
        try:
            finding = await self.checker.check(call.pair, due, notes.reference(call.mark))
        except Exception as error:
            self._gave_up(status, error)
            return
        finally:
            self._ended_s = self.clock()
        if self._notes is not notes:
            return  # reset meanwhile
        if finding.verdict is ProbeVerdict.DRIFT:
            record = await self._treated(call, finding)
            if self._notes is not notes:
                return  # reset meanwhile; what was pinned stays so, and is in the records
            status.drifted(record)
        self._notes = notes.after(finding, now_s=self._ended_s)
        status.checks, status.last = status.checks + 1, finding
        self._tell(finding, status)

    def _gave_up(self, status: PairStatus, error: Exception) -> None:
        """A check has found nothing; the next attempt is a while later, whatever the reason."""
        status.not_before_s = self.clock() + _RETRY_S
        told = str(error) if isinstance(error, SplashError) else f"{type(error).__name__}: {error}"
        self._obstruct(status, f"given up: {told}")
        status.count("gave_up_total")
        if not isinstance(error, SplashError):
            _LOG.error("a check by probes failed", exc_info=error)

    async def _treated(self, call: _Call, finding: ProbeFinding) -> DriftRecord:
        """Hold what may be at fault; what was found and done."""
        addresses = {Phase.PREFILL: call.pair.prefill.address, Phase.DECODE: call.pair.decode.address}
        remedies = self._notes.remedies(finding)
        treated = tuple([await self.holder.treat(one, addresses[one.mark.phase]) for one in remedies])
        record = DriftRecord(finding=finding, treated=treated)
        self._records.append(record)
        call.status.count("drifts_total")
        held = [one.reason for one in treated]
        _LOG.error("answers have changed", extra={"fields": {"cause": record.reason, "remedies": held}})
        return record

    def _tell(self, finding: ProbeFinding, status: PairStatus) -> None:
        """Count and show a check that has found something."""
        status.count("checks_total")
        if finding.odd is not None:
            status.count("odd_total")
            _LOG.warning("answers differed once", extra={"fields": {"cause": finding.odd.reason}})
        if finding.verdict is ProbeVerdict.REFERENCE:
            _LOG.info("reference answers kept", extra={"fields": {"groups": finding.round.mark.layouts}})
        status.show()

    def _obstruct(self, status: PairStatus, obstacle: str) -> None:
        """Note why a check that is due is not made; told once for as long as there is a reason."""
        if status.obstruct(obstacle, now_s=self.clock()):
            fields = {"pair": list(status.pair), "cause": obstacle}
            _LOG.info("probes wait", extra={"fields": fields})

    def reset(self) -> None:
        """Forget references and alarms: the next answers are the new references."""
        self._notes, self._not_before_s = ProbeNotes(), 0.0
        self.memory.reset()
        for status in self._pairs.values():
            status.end_alarm()
            status.not_before_s = 0.0
            status.show()
        _LOG.info("probes reset")

    def alarm_of(self, group: str) -> str | None:
        """Why answers of a group are not trusted; None where they are."""
        alarms = [status.alarm for pair, status in self._pairs.items() if group in pair]
        return next((alarm.reason for alarm in alarms if alarm is not None), None)

    def decisions(self, phase: str | None = None) -> list[dict[str, Any]]:
        """Drifts, oldest first, in the shape of decisions."""
        found = [decision for record in self._records for decision in record.decisions()]
        return [decision for decision in found if phase in (None, decision["phase"])]

    def to_json(self) -> dict[str, Any]:
        """The answer of `GET /admin/canary`."""
        pairs, records = self._pairs.values(), self.registry.records()
        out = [(record, why_out(record, records)) for record in records]
        return {
            "every_s": self.every_s,
            "out": [
                {"group": record.label, "phase": record.phase, "reason": reason}
                for record, reason in out
                if reason is not None
            ],
            "alarms": sum(status.alarm is not None for status in pairs),
            "pairs": [self._pair_json(status) for status in pairs],
            "drifts": [record.to_json() for record in self._records],
        }

    def _pair_json(self, status: PairStatus) -> dict[str, Any]:
        reference = None if status.mark is None else self._notes.reference(status.mark)
        left = why_reference_left(status.pair, self.registry.records(), self._notes.references)
        return status.to_json(reference, left=left, now_s=self.clock())
