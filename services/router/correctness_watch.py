"""The correctness canary: asks fixed prompts again and again; a layout that changes an answer is left.

Invariant: at most one round is under way in a router, users' requests go before it, and it is given up when a
group drains, fills up, or takes too long.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from services.router.correctness_check import Checker
from services.router.correctness_status import PairStatus
from services.router.metrics import Metrics
from services.router.registry import Registry
from splash_core.dispatch.placement import Pair, covering
from splash_core.errors import SplashError
from splash_core.pb import control_pb2
from splash_core.policy.correctness_notes import (
    CanaryNotes,
    Due,
    Finding,
    PairMark,
    PairName,
    Remedy,
    Verdict,
)
from splash_core.policy.correctness_record import DriftRecord, Treated

_LOG = logging.getLogger("splash.router")
_PREFIX = "splash_correctness_canary"
_KEPT = 64
_PIN_TIMEOUT_S = 10.0
_RETRY_S = 10.0
"""After a check that came to nothing."""
_URGENCY = (Due.SWITCH, Due.RESTART, Due.FIRST, Due.PERIOD)


@dataclass(slots=True, kw_only=True)
class CorrectnessWatch:
    """The canary of one router."""

    registry: Registry
    checker: Checker
    metrics: Metrics
    every_s: float
    """Between two checks of a pair; 0: there are none at all."""
    clock: Callable[[], float]
    _notes: CanaryNotes = field(default_factory=CanaryNotes)
    _pairs: dict[PairName, PairStatus] = field(default_factory=dict[PairName, PairStatus])
    _records: deque[DriftRecord] = field(default_factory=lambda: deque[DriftRecord](maxlen=_KEPT))
    _ended_s: float = 0.0
    """When the newest check ended: what groups told before is out of date."""
    _task: "asyncio.Task[None] | None" = None

    async def start(self) -> None:
        """Follow the groups from now on."""
        if self.every_s > 0:
            self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # a check that goes wrong must not end all that come later
                _LOG.exception("the correctness canary could not look")
            await self.registry.wait_for_change()

    async def look(self) -> None:
        """Make the most urgent check that is due and possible, if there is one."""
        now_s = self.clock()
        self._settle()
        for pair, mark, due in self._due(now_s):
            status = self._pairs.setdefault(mark.name, PairStatus(mark.name))
            if now_s < status.not_before_s:
                continue
            obstacle = self.checker.questioner.obstacle(pair, mark.prompts, under_way=False)
            self._obstruct(status, obstacle or "")
            if obstacle is None:
                await self._check(pair, mark, due)
                return

    def _settle(self) -> None:
        """End alarms that are over."""
        pins = {
            record.label: record.state.policy.pinned
            for record in self.registry.records()
            if record.state is not None
        }
        for status in self._pairs.values():
            status.settle(pins)
            self._show(status)

    def _due(self, now_s: float) -> list[tuple[Pair, PairMark, Due]]:
        """What is to be asked, the most urgent first."""
        found: list[tuple[Pair, PairMark, Due]] = []
        for pair in covering(self.registry.pairs()):
            mark = self.checker.mark(pair)
            known = [self.registry.record(load.address).asked_at_s for load in (pair.prefill, pair.decode)]
            if mark is None or min(known) < self._ended_s:
                continue
            due = self._notes.due(mark, now_s=now_s, every_s=self.every_s)
            if due is not None:
                found.append((pair, mark, due))
        asked_s = self._notes.asked_s
        found.sort(key=lambda entry: (_URGENCY.index(entry[2]), asked_s.get(entry[1].name, 0.0)))
        return found

    async def _check(self, pair: Pair, mark: PairMark, due: Due) -> None:
        """One check, and what follows from it."""
        notes, status = self._notes, self._pairs[mark.name]
        try:
            finding = await self.checker.check(pair, due, notes.reference(mark))
        except SplashError as error:
            status.not_before_s = self.clock() + _RETRY_S
            self._obstruct(status, f"given up: {error}")
            self._count("gave_up_total", status)
            return
        finally:
            self._ended_s = self.clock()
        if self._notes is not notes:
            return  # reset meanwhile
        if finding.verdict is Verdict.DRIFT:
            await self._drifted(pair, finding, status)
        self._notes = notes.after(finding, now_s=self._ended_s)
        status.checks, status.last = status.checks + 1, finding
        self._tell(finding, status)

    async def _drifted(self, pair: Pair, finding: Finding, status: PairStatus) -> None:
        """Raise the alarm, and hold what may be at fault."""
        addresses = {load.group: load.address for load in (pair.prefill, pair.decode)}
        treated = tuple(
            [await self._treat(one, addresses[one.mark.group]) for one in self._notes.remedies(finding)]
        )
        record = DriftRecord(finding=finding, treated=treated)
        status.drifted(record)
        self._records.append(record)
        self._count("drifts_total", status)
        held = [one.reason for one in treated]
        _LOG.error("answers have changed", extra={"fields": {"cause": record.reason, "remedies": held}})

    async def _treat(self, remedy: Remedy, address: str) -> Treated:
        """Pin a group, as `splash layout pin` does."""
        if not remedy.to:
            return Treated(remedy=remedy)
        try:
            async with asyncio.timeout(_PIN_TIMEOUT_S):
                await self.registry.workers[address].pin(control_pb2.PinRequest(layout=remedy.to))
        except TimeoutError:
            return Treated(remedy=remedy, trouble=f"no answer within {_PIN_TIMEOUT_S:g} s")
        except SplashError as error:
            return Treated(remedy=remedy, trouble=str(error))
        self.registry.suspect(address)
        return Treated(remedy=remedy)

    def _tell(self, finding: Finding, status: PairStatus) -> None:
        """Count and show a check that has found something."""
        self._count("checks_total", status)
        if finding.odd is not None:
            self._count("odd_total", status)
            _LOG.warning("answers differed once", extra={"fields": {"cause": finding.odd.reason}})
        if finding.verdict is Verdict.REFERENCE:
            _LOG.info("reference answers kept", extra={"fields": {"groups": finding.round.mark.layouts}})
        labels = status.labels
        self.metrics.show(f"{_PREFIX}_last_delta", finding.comparison.largest, **labels)
        self.metrics.show(f"{_PREFIX}_last_check_timestamp_seconds", finding.round.time_s, **labels)
        self._show(status)

    def _show(self, status: PairStatus) -> None:
        self.metrics.show(f"{_PREFIX}_alarm", status.alarm is not None, **status.labels)

    def _count(self, name: str, status: PairStatus) -> None:
        self.metrics.count(f"{_PREFIX}_{name}", 1, **status.labels)

    def _obstruct(self, status: PairStatus, obstacle: str) -> None:
        """Note why a check that is due is not made; told once for as long as there is a reason."""
        if obstacle and not status.obstacle:
            status.obstacle_since_s = self.clock()
            self._count("skipped_total", status)
            fields = {"pair": list(status.pair), "cause": obstacle}
            _LOG.info("correctness canary waits", extra={"fields": fields})
        status.obstacle = obstacle

    def reset(self) -> None:
        """Forget references and alarms: the next answers are the new references."""
        self._notes = CanaryNotes()
        for status in self._pairs.values():
            status.end_alarm()
            status.not_before_s = 0.0
            self._show(status)
        _LOG.info("correctness canary reset")

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
        pairs = self._pairs.values()
        return {
            "every_s": self.every_s,
            "alarms": sum(status.alarm is not None for status in pairs),
            "pairs": [
                status.to_json(self._notes.references.get(status.pair), now_s=self.clock())
                for status in pairs
            ],
            "drifts": [record.to_json() for record in self._records],
        }
