"""What the correctness canary tells of one pair of groups: last check, what it waits for, its alarm."""

from dataclasses import dataclass
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

    def note(self, finding: Finding) -> None:
        """Take in what a check has found; as it should be, and no group held any longer: no alarm."""
        self.checks, self.last = self.checks + 1, finding
        if self.alarm is not None and not finding.comparison.drifted:
            now = {mark.group: mark for mark in finding.round.mark.groups}
            held = [one.remedy for one in self.alarm.treated if one.held]
            if all(now[remedy.mark.group].pinned != remedy.to for remedy in held):
                self.alarm = None

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
