"""How a canary ended: the comparison with its numbers, and what follows from it.

Invariant: a record with a comparison states both measured values and the tolerance that decided.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from splash_core.policy.keys import plain
from splash_core.policy.snapshot import Phase
from splash_core.policy.step_totals import StepTotals
from splash_core.policy.trial import Metric, Trial


class CanaryVerdict(StrEnum):
    """What follows from a canary."""

    PROMOTE = "PROMOTE"
    """What was tried becomes its phase's."""
    ROLL_BACK = "ROLL_BACK"
    SUPERSEDED = "SUPERSEDED"
    """Another version came before it had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryComparison:
    """Two measurements of one metric."""

    metric: Metric
    tried: float | None
    reference: float | None
    against: str
    """Whose the reference is: `by decode-0`, `by itself before`."""
    steps: tuple[int, int]
    """Steps of either side."""
    prompts: tuple[int, int]
    """Prompts of either side that got their first token; none in decode."""
    tolerance: float

    @staticmethod
    def of(trial: Trial, own: StepTotals, other: StepTotals, *, against: str) -> "CanaryComparison":
        """Compare what the canary's group did with what others did."""
        return CanaryComparison(
            metric=trial.metric,
            tried=own.measured(trial.metric),
            reference=other.measured(trial.metric),
            against=against,
            steps=(own.steps, other.steps),
            prompts=(own.prompts, other.prompts),
            tolerance=trial.tolerance,
        )

    @property
    def change(self) -> float | None:
        """By which part it is better (above 0) or worse; None where it cannot be said."""
        if self.tried is None or not self.reference:
            return None
        return self.metric.better.value * (self.tried / self.reference - 1)

    @property
    def verdict(self) -> CanaryVerdict:
        """Worse by more than the tolerance, or not measured: rolled back."""
        kept = self.change is not None and self.change >= -self.tolerance
        return CanaryVerdict.PROMOTE if kept else CanaryVerdict.ROLL_BACK

    @property
    def reason(self) -> str:
        """In words, with the numbers."""
        if self.change is None:
            return f"{self.metric} was not measured"
        how = "better" if self.change >= 0 else "worse"
        return (
            f"{self.metric} {self.tried:.4g} against {self.reference:.4g} {self.against}: "
            f"{abs(self.change):.1%} {how}, {self.tolerance:.1%} worse is tolerated"
        )

    def to_json(self) -> dict[str, Any]:
        """For the admin API."""
        return {
            "metric": self.metric.value,
            "tried": self.tried,
            "reference": self.reference,
            "against": self.against,
            "steps": list(self.steps),
            "prompts": list(self.prompts),
            "change": self.change,
            "tolerance": self.tolerance,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRecord:
    """The end of a canary."""

    time_s: float
    trial: Trial
    phase: Phase | None
    """None where its group was never heard of."""
    verdict: CanaryVerdict
    reason: str
    comparison: CanaryComparison | None

    def to_json(self) -> dict[str, Any]:
        """In the shape of `GET /admin/decisions`; a canary changes a policy, not a layout."""
        return {
            "time": self.time_s,
            "phase": None if self.phase is None else self.phase.value,
            "group": self.trial.group,
            "verdict": self.verdict.value,
            "cause": "canary",
            "reason": self.reason,
            "from": None,
            "to": None,
            "tried": {name: plain(value) for name, value in self.trial.values.items()},
            "comparison": None if self.comparison is None else self.comparison.to_json(),
        }
