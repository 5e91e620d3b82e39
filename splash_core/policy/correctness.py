"""Greedy answers to fixed prompts, compared with those of before: does the model still say the same?

Layouts, ranks and batches round sums differently, so equal answers are equal to a tolerance. Invariant: a
comparison names the numbers that decided it; what is not a number (NaN) never counts as equal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One token of a greedy answer."""

    token: int
    logprob: float
    margin: float
    """By how much it led the second best in log-probability; infinite where there was none."""


Answer = tuple[Said, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What rounding explains, in log-probability."""

    largest: float
    """Of one token. A token that led by no more than this may be another one the next time."""
    mean: float
    """Over all tokens: what is wrong everywhere by a little shows here first."""


TOLERANCES: Mapping[str, Tolerance] = {
    "fp64": Tolerance(largest=1e-6, mean=1e-7),
    "fp32": Tolerance(largest=1e-3, mean=1e-4),
    "bf16": Tolerance(largest=1.0, mean=0.1),
}
"""By element type. In bf16 a router's tie may send a row to another expert, so that one token is far off."""


def tolerance_of(dtype: str) -> Tolerance:
    """Of an element type; of one that is not known, the widest."""
    return TOLERANCES.get(dtype, TOLERANCES["bf16"])


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDifference:
    """Where an answer first has another token than the reference, or ends elsewhere."""

    prompt: int
    position: int
    reference: int | None
    seen: int | None
    """None where that side has ended."""
    margin: float
    """By how much the reference's token had led."""

    def to_json(self) -> dict[str, Any]:
        """For the admin API."""
        return {
            "prompt": self.prompt,
            "position": self.position,
            "reference": self.reference,
            "seen": self.seen,
            "margin": finite(self.margin),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """Answers to all prompts against their reference."""

    tolerance: Tolerance
    tokens: int
    """Compared: up to the first difference of each answer."""
    largest: float
    """Difference of log-probabilities; infinite where one is no number."""
    mean: float
    differences: tuple[AnswerDifference, ...]

    @property
    def beyond(self) -> tuple[AnswerDifference, ...]:
        """Differences that rounding does not explain."""
        return tuple(found for found in self.differences if not found.margin <= self.tolerance.largest)

    @property
    def drifted(self) -> bool:
        """Whether anything is beyond the tolerance."""
        small = self.largest <= self.tolerance.largest and self.mean <= self.tolerance.mean
        return bool(self.beyond) or not small

    @property
    def reason(self) -> str:
        """In words, with the numbers."""
        told = [
            f"prompt {found.prompt} has {_named(found.seen)} for {_named(found.reference)} at position "
            f"{found.position}, which had led by {found.margin:.3g} (a tie: {self.tolerance.largest:g})"
            for found in self.beyond[:1]
        ]
        told.append(
            f"log-probabilities of {self.tokens} tokens differ by {self.largest:.3g} at most "
            f"({self.tolerance.largest:g} is tolerated) and by {self.mean:.3g} in the mean "
            f"({self.tolerance.mean:g})"
        )
        return "; ".join(told)

    def to_json(self) -> dict[str, Any]:
        """For the admin API."""
        return {
            "drifted": self.drifted,
            "tokens": self.tokens,
            "largest_delta": finite(self.largest),
            "mean_delta": finite(self.mean),
            "largest_tolerated": self.tolerance.largest,
            "mean_tolerated": self.tolerance.mean,
            "differences": [found.to_json() for found in self.differences],
        }


def compare(reference: Sequence[Answer], seen: Sequence[Answer], *, tolerance: Tolerance) -> AnswerComparison:
    """Compare answers to the same prompts, in their order.

    Args:
        reference: what was said first.
        seen: what is said now.
        tolerance: of the element type.
    """
    deltas, differences = list[float](), list[AnswerDifference]()
    for prompt, (first, later) in enumerate(zip(reference, seen, strict=True)):
        same = _common(first, later)
        deltas += [
            _delta(was.logprob, now.logprob) for was, now in zip(first[:same], later[:same], strict=True)
        ]
        if same < max(len(first), len(later)):
            differences.append(_difference(prompt, same, first, later))
    return AnswerComparison(
        tolerance=tolerance,
        tokens=len(deltas),
        largest=max(deltas, default=0.0),
        mean=math.fsum(deltas) / max(1, len(deltas)),
        differences=tuple(differences),
    )


def finite(value: float) -> float | None:
    """JSON has neither infinities nor NaN."""
    return value if math.isfinite(value) else None


def _common(first: Answer, later: Answer) -> int:
    """Tokens until the first that differs."""
    for position, (was, now) in enumerate(zip(first, later, strict=False)):
        if was.token != now.token:
            return position
    return min(len(first), len(later))


def _difference(prompt: int, position: int, first: Answer, later: Answer) -> AnswerDifference:
    was = first[position] if position < len(first) else None
    now = later[position] if position < len(later) else None
    return AnswerDifference(
        prompt=prompt,
        position=position,
        reference=None if was is None else was.token,
        seen=None if now is None else now.token,
        # Only another token can be a tie: all answers are equally long.
        margin=math.inf if was is None or now is None else was.margin,
    )


def _delta(was: float, now: float) -> float:
    delta = abs(was - now)
    return math.inf if math.isnan(delta) else delta


def _named(token: int | None) -> str:
    return "an end" if token is None else f"token {token}"
