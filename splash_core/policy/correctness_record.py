"""A drift of answers as a record: what was found, and what was done with which group.

Invariant: a record says for each group that may be at fault whether it is held, where, and why.
"""

from dataclasses import dataclass
from typing import Any

from splash_core.policy.correctness_notes import ProbeFinding, Remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """A remedy, and what came of it."""

    remedy: Remedy
    trouble: str = ""
    """Why it could not be done; empty if it was, or nothing was to be done."""
    doubt: str = ""
    """Why nobody knows whether it was done; it counts as done, so that what is held is explained."""

    @property
    def held(self) -> bool:
        """Whether the group is held for it."""
        return bool(self.remedy.to) and not self.trouble

    @property
    def reason(self) -> str:
        """In words."""
        if self.trouble:
            return f"{self.remedy.reason}, but that failed: {self.trouble}"
        if self.doubt:
            return f"{self.remedy.reason}, but whether that was done is not known: {self.doubt}"
        return self.remedy.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRecord:
    """One drift."""

    finding: ProbeFinding
    treated: tuple[Treated, ...]

    @property
    def reason(self) -> str:
        """What was found, in words."""
        mark = self.finding.round.mark
        return f"answers have changed ({mark.layouts}): {self.finding.comparison.reason}"

    def to_json(self) -> dict[str, Any]:
        """As the admin API shows an alarm."""
        return {
            "time": self.finding.round.time_s,
            "reason": self.reason,
            "due": self.finding.due.value,
            "groups": [
                {
                    "group": one.remedy.mark.group,
                    "phase": one.remedy.mark.phase.value,
                    "layout": one.remedy.mark.layout,
                    "pinned_to": one.remedy.to if one.held else None,
                    "reason": one.reason,
                }
                for one in self.treated
            ],
        }

    def decisions(self) -> list[dict[str, Any]]:
        """In the shape of `GET /admin/decisions`, one for each group that may be at fault."""
        finding = self.finding
        return [
            {
                "time": finding.round.time_s,
                "phase": one.remedy.mark.phase.value,
                "group": one.remedy.mark.group,
                "verdict": "PIN" if one.held else "ALARM",
                "cause": "correctness",
                "reason": f"{self.reason}; {one.reason}",
                "from": one.remedy.mark.layout,
                "to": one.remedy.to if one.held else None,
                "pair": list(finding.round.mark.name),
                "comparison": finding.comparison.to_json(),
            }
            for one in self.treated
        ]
