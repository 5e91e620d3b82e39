"""What probes tell of one pair of groups: last check, what it waits for, its alarm.

Invariant: a pair that is not asked shows no value of the moment but its alarm; one that has ended, nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.router.metrics import Metrics
from splash_core.policy.correctness_notes import GroupMark, PairMark, PairName, ProbeFinding, Round
from splash_core.policy.correctness_record import DriftRecord

_PREFIX = "splash_probe"
_ALARM, _DELTA, _TIME = "alarm", "last_delta", "last_check_timestamp_seconds"
_COUNTS = ("checks_total", "drifts_total", "odd_total", "skipped_total", "gave_up_total")


@dataclass(slots=True)
class PairStatus:
    """Of one pair, from the router's start."""

    pair: PairName
    metrics: Metrics
    mark: PairMark | None = None
    """As it was when it was last to be asked."""
    asked: bool = False
    """Whether it is one of those that are asked now."""
    checks: int = 0
    drifts: int = 0
    last: ProbeFinding | None = None
    alarm: DriftRecord | None = None
    """The drift that nobody has cleared yet."""
    held: Mapping[str, str] = field(default_factory=dict[str, str])
    """Layouts that groups were pinned to since the alarm was raised."""
    obstacle: str = ""
    """Why it is not asked although it is due; empty if it is not due."""
    obstacle_since_s: float = 0.0
    not_before_s: float = 0.0
    """After a check that came to nothing, monotonic."""

    @property
    def _labels(self) -> dict[str, str]:
        prefill, decode = self.pair
        return {"prefill": prefill, "decode": decode}

    def count(self, name: str) -> None:
        """One more of a counter."""
        self.metrics.count(f"{_PREFIX}_{name}", 1, **self._labels)

    def show(self) -> None:
        """Its values of the moment; none of a check that is not followed by others."""
        found = {_ALARM: float(self.alarm is not None)} if self.asked or self.alarm is not None else {}
        if self.asked and self.last is not None:
            found |= {_DELTA: self.last.comparison.largest, _TIME: self.last.round.time_s}
        for name in (_ALARM, _DELTA, _TIME):
            if name in found:
                self.metrics.show(f"{_PREFIX}_{name}", found[name], **self._labels)
            else:
                self.metrics.hide(f"{_PREFIX}_{name}", **self._labels)

    def forget(self) -> None:
        """It does not exist any more: end all its series."""
        for name in (_ALARM, _DELTA, _TIME, *_COUNTS):
            self.metrics.forget(f"{_PREFIX}_{name}", **self._labels)

    def obstruct(self, obstacle: str, *, now_s: float) -> bool:
        """Note why it is not asked; True where there is a reason, and there was none before."""
        begins = bool(obstacle) and not self.obstacle
        if begins:
            self.obstacle_since_s = now_s
            self.count("skipped_total")
        self.obstacle = obstacle
        return begins

    def settle(self, pins: Mapping[str, str]) -> None:
        """End the alarm where answers are as they should be again, and nothing is held any longer.

        Args:
            pins: layouts that groups are pinned to now.
        """
        if self.alarm is None or self.last is None or self.last.comparison.drifted:
            return
        if all(pins.get(group) != layout for group, layout in self.held.items()):
            self.end_alarm()

    def end_alarm(self) -> None:
        """Whoever is responsible has seen it."""
        self.alarm, self.held = None, {}

    def drifted(self, record: DriftRecord) -> None:
        """Raise the alarm; what earlier drifts have pinned counts on."""
        self.drifts, self.alarm = self.drifts + 1, record
        pinned = {one.remedy.mark.group: one.remedy.to for one in record.treated if one.held}
        self.held = {**self.held, **pinned}

    def to_json(self, reference: Round | None, *, left: str | None, now_s: float) -> dict[str, Any]:
        """For `GET /admin/canary`.

        Args:
            reference: of its groups, if there is one.
            left: why one of other weights does not apply to them.
            now_s: monotonic.
        """
        prefill, decode = self.pair
        return {
            "prefill": prefill,
            "decode": decode,
            "checks": self.checks,
            "drifts": self.drifts,
            "reference": None if reference is None else _round(reference),
            "reference_left": left,
            "last": None if self.last is None else _finding(self.last),
            "waits_for": self.obstacle or None,
            "waits_s": now_s - self.obstacle_since_s if self.obstacle else None,
            "alarm": None if self.alarm is None else self.alarm.to_json(),
        }


def _finding(finding: ProbeFinding) -> dict[str, Any]:
    return {
        "verdict": finding.verdict.value,
        "due": finding.due.value,
        "comparison": finding.comparison.to_json(),
        "odd": None if finding.odd is None else finding.odd.to_json(),
        **_round(finding.round),
    }


def _round(round_: Round) -> dict[str, Any]:
    mark: PairMark = round_.mark
    return {
        "time": round_.time_s,
        "model": mark.model,
        "dtype": mark.dtype,
        "prompt_tokens": [len(prompt) for prompt in mark.prompts],
        "output_tokens": [len(answer) for answer in round_.answers],
        "groups": [_mark(group) for group in mark.groups],
    }


def _mark(mark: GroupMark) -> dict[str, Any]:
    return {"group": mark.group, "layout": mark.layout, "layout_epoch": mark.epoch}
