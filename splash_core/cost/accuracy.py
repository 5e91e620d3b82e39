"""How well a profile predicts what was measured, and whether its choices are those that measurements make."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splash_core.cost.fit import predicted_s
from splash_core.cost.model import CostModel
from splash_core.cost.samples import StepSample
from splash_core.layout.layout import RULES, Layout

MOST_ERROR = 0.15
SPREADS = 2.0
"""An error within so many of the batch's own spreads (IQR of its repetitions) is allowed as well."""
NEAR = 0.05
"""A choice is good if it is measured to be the best, or slower by no more than this."""
GOOD_CHOICES = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAccuracy:
    """Steps of one phase in one layout."""

    phase: str
    layout: Layout
    held_out: bool
    steps: int
    error: float
    """Median of |predicted / measured − 1|."""
    bias: float
    """Median of predicted / measured − 1."""
    spread: float
    """Median of the batches' own interquartile ranges over their medians."""
    of_limit: float
    """Median of error / max(15 %, 2 × the batch's spread)."""

    @property
    def holds(self) -> bool:
        """Whether the error is within the limit."""
        return self.of_limit <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """What the model would run one batch in, beside what is measured."""

    batch: str
    phase: str
    held_out: bool
    chosen: Layout
    best: Layout
    slower: float
    """Measured time in the chosen layout / in the best one − 1."""

    @property
    def good(self) -> bool:
        """The best, or as good."""
        return self.slower <= NEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Of one profile on one calibration's steps."""

    groups: tuple[GroupAccuracy, ...]
    choices: tuple[LayoutChoice, ...]

    @classmethod
    def of(cls, model: CostModel, steps: Sequence[StepSample]) -> "Accuracy":
        """Compare predictions with measurements."""
        groups: dict[tuple[str, Layout, bool], list[StepSample]] = defaultdict(list)
        for sample in steps:
            groups[sample.phase, sample.layout, sample.held_out].append(sample)
        ordered = sorted(groups.items(), key=lambda item: (item[0][2], item[0][0], str(item[0][1])))
        return cls(
            groups=tuple(_group(model, key, samples) for key, samples in ordered),
            choices=choices(model, steps),
        )

    def good_choices(self, phase: str, *, held_out: bool = True) -> tuple[int, int]:
        """Good choices, and all."""
        mine = [one for one in self.choices if one.phase == phase and one.held_out == held_out]
        return sum(one.good for one in mine), len(mine)

    @property
    def holds(self) -> bool:
        """Whether held-out errors and choices are within their limits."""
        held = [group for group in self.groups if group.held_out]
        chosen = [self.good_choices(phase) for phase in sorted({group.phase for group in held})]
        return all(group.holds for group in held) and all(
            good >= GOOD_CHOICES * count for good, count in chosen
        )

    def residuals(self) -> dict[str, float]:
        """Median error of held-out steps by phase and layout, for a profile's provenance."""
        return {
            f"{group.phase}/{group.layout}": round(group.error, 4) for group in self.groups if group.held_out
        }

    def to_json(self) -> dict[str, Any]:
        """For the document."""
        return {
            "groups": [
                {
                    "phase": group.phase,
                    "layout": group.layout.value,
                    "held_out": group.held_out,
                    "steps": group.steps,
                    "error": round(group.error, 4),
                    "bias": round(group.bias, 4),
                    "spread": round(group.spread, 4),
                    "of_limit": round(group.of_limit, 4),
                }
                for group in self.groups
            ],
            "choices": [
                {
                    "batch": one.batch,
                    "phase": one.phase,
                    "held_out": one.held_out,
                    "chosen": one.chosen.value,
                    "best": one.best.value,
                    "slower": round(one.slower, 4),
                }
                for one in self.choices
            ],
            "holds": self.holds,
        }


def choices(model: CostModel, steps: Sequence[StepSample]) -> tuple[LayoutChoice, ...]:
    """The choice for each batch that was measured in more than one layout."""
    batches: dict[str, dict[Layout, StepSample]] = defaultdict(dict)
    for sample in steps:
        batches[sample.batch][sample.layout] = sample
    return tuple(_choice(model, samples) for samples in batches.values() if len(samples) > 1)


def _choice(model: CostModel, samples: Mapping[Layout, StepSample]) -> LayoutChoice:
    times = {
        layout: model.predict(RULES[layout], sample.load, kind=sample.kind).step_s
        for layout, sample in samples.items()
    }
    chosen = min(times, key=lambda layout: times[layout])
    best = min(samples.values(), key=lambda sample: sample.seconds)
    return LayoutChoice(
        batch=best.batch,
        phase=best.phase,
        held_out=best.held_out,
        chosen=chosen,
        best=best.layout,
        slower=samples[chosen].seconds / best.seconds - 1,
    )


def _group(model: CostModel, key: tuple[str, Layout, bool], samples: Sequence[StepSample]) -> GroupAccuracy:
    phase, layout, held = key
    errors = [predicted_s(model, sample) / sample.seconds - 1 for sample in samples]
    limits = [max(MOST_ERROR, SPREADS * sample.spread) for sample in samples]
    return GroupAccuracy(
        phase=phase,
        layout=layout,
        held_out=held,
        steps=len(samples),
        error=statistics.median(map(abs, errors)),
        bias=statistics.median(errors),
        spread=statistics.median(sample.spread for sample in samples),
        of_limit=statistics.median(abs(error) / limit for error, limit in zip(errors, limits, strict=True)),
    )
