"""What the correctness canary tells of one pair of groups: last check, what it waits for, its alarm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from splash_core.policy.correctness_notes import Finding, GroupMark, PairMark, PairName, Round
from splash_core.policy.correctness_record import DriftRecord


@dataclass(slots=True)
class PairStatus:
    """Of one pair, from the router's start."""

    pair: PairName
    checks: int = 0
    drifts: int = 0
    last: Finding | None = None
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
    def labels(self) -> dict[str, str]:
        """Of its metrics."""
        prefill, decode = self.pair
        return {"prefill": prefill, "decode": decode}

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

    def to_json(self, reference: Round | None, *, now_s: float) -> dict[str, Any]:
        """For `GET /admin/canary`."""
        prefill, decode = self.pair
        return {
            "prefill": prefill,
            "decode": decode,
            "checks": self.checks,
            "drifts": self.drifts,
            "reference": None if reference is None else _round(reference),
            "last": None if self.last is None else _finding(self.last),
            "waits_for": self.obstacle or None,
            "waits_s": now_s - self.obstacle_since_s if self.obstacle else None,
            "alarm": None if self.alarm is None else self.alarm.to_json(),
        }


def _finding(finding: Finding) -> dict[str, Any]:
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
