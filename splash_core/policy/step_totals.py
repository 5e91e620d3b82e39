"""What a group's steps and prompts have amounted to since its start, so that any two moments can be compared.

Only users' sequences and prompts count, and steps that ran some: the router's probes are no load of anybody.

Invariant: totals only grow within a life of the group.
"""

from dataclasses import dataclass, fields

from splash_core.policy.trial import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Sums over steps, switching ones included."""

    steps: int = 0
    rows: int = 0
    """Tokens computed: prompt tokens in prefill, one a sequence in decode."""
    sequences: int = 0
    """Sequences, counted once a step."""
    step_s: float = 0.0
    """Time of steps on their slowest rank."""
    sequence_s: float = 0.0
    """The same, counted once for each sequence of a step."""
    prompts: int = 0
    """Prompts whose first token was drawn here."""
    ttft_s: float = 0.0
    """From their arrival in this group's queue to that token."""

    def with_step(self, *, rows: int, sequences: int, step_s: float) -> "StepTotals":
        """After one more step."""
        step = StepTotals(
            steps=1, rows=rows, sequences=sequences, step_s=step_s, sequence_s=step_s * sequences
        )
        return self.plus(step)

    def with_prompt(self, *, ttft_s: float) -> "StepTotals":
        """After one more prompt has got its first token."""
        return self.plus(StepTotals(prompts=1, ttft_s=ttft_s))

    def samples(self, metric: Metric) -> int:
        """What the metric is a mean over: steps, or prompts."""
        return self.prompts if metric.of_prompts else self.steps

    def plus(self, other: "StepTotals") -> "StepTotals":
        """Of two groups, or periods, together."""
        return StepTotals(
            **{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)}
        )

    def since(self, earlier: "StepTotals") -> "StepTotals":
        """What was added after `earlier`."""
        return StepTotals(
            **{item.name: getattr(self, item.name) - getattr(earlier, item.name) for item in fields(self)}
        )

    def measured(self, metric: Metric) -> float | None:
        """The metric's value; None where nothing was measured."""
        over, under = {
            Metric.TOKENS_PER_S: (float(self.rows), self.step_s),
            Metric.STEP_MS: (self.step_s * 1e3, float(self.steps)),
            Metric.ITL_MS: (self.sequence_s * 1e3, float(self.sequences)),
            Metric.TTFT_MS: (self.ttft_s * 1e3, float(self.prompts)),
        }[metric]
        return over / under if under > 0 else None
