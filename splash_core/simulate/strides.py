"""Times of many steps of one shape, in closed form: exact wherever the cost model is.

Step j of decode rows has j keys more a row than the first. Stage times are maxima of linear functions of
that, so a step's time is convex and piecewise linear in j (rows keep to one side of a sparse top-k): if
first, middle and last lie on a line, all do; otherwise the range is halved.
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_COLLINEAR = 1e-12
_SLACK_S = 1e-12


class Stretch(NamedTuple):
    """Steps whose times grow evenly."""

    first: int
    """Steps before it."""
    num_steps: int
    step_s: float
    """Of its first step."""
    slope_s: float
    """By which each step is longer than the one before."""
    begin_s: float
    """Since the first step of all began."""

    def lasting(self, steps: int) -> float:
        """Seconds of its first `steps` steps."""
        return steps * self.step_s + self.slope_s * steps * (steps - 1) / 2


@dataclass(frozen=True, slots=True)
class Stride:
    """Steps of one shape, from `start_s` on."""

    start_s: float
    stretches: tuple[Stretch, ...]

    @classmethod
    def of(
        cls, start_s: float, steps: int, cost: Callable[[int], float], *, extra_s: float = 0.0
    ) -> "Stride":
        """Steps 0 … `steps`-1, each as long as `cost` says; the first takes `extra_s` more."""
        known: dict[int, float] = {}

        def time(step: int) -> float:
            if step not in known:
                known[step] = cost(step)
            return known[step]

        stretches: list[Stretch] = []
        begin = extra_s
        for first, last in _even(time, 0, steps - 1):
            count = last - first + 1
            slope = (time(last) - time(first)) / (count - 1) if count > 1 else 0.0
            stretch = Stretch(first, count, time(first), slope, begin)
            stretches.append(stretch)
            begin += stretch.lasting(count)
        return cls(start_s, tuple(stretches))

    @property
    def steps(self) -> int:
        """How many there are."""
        last = self.stretches[-1]
        return last.first + last.num_steps

    def end(self, steps: int) -> float:
        """When the first `steps` steps (at least one) have ended."""
        index = bisect.bisect_left(self.stretches, steps, key=lambda stretch: stretch.first) - 1
        stretch = self.stretches[index]
        return self.start_s + stretch.begin_s + stretch.lasting(steps - stretch.first)

    def lasting(self, step: int) -> float:
        """Seconds of step `step`, from 1; what the first one takes more is left out."""
        index = bisect.bisect_left(self.stretches, step, key=lambda stretch: stretch.first) - 1
        stretch = self.stretches[index]
        return stretch.step_s + stretch.slope_s * (step - 1 - stretch.first)

    def ended_by(self, now: float) -> int:
        """Steps that have ended at a time."""
        return bisect.bisect_right(range(1, self.steps + 1), now + _SLACK_S, key=self.end)

    def first_end_from(self, now: float) -> int:
        """The first step that ends at a time or after it, counted from 1; the last one if none does."""
        found = bisect.bisect_left(range(1, self.steps + 1), now - _SLACK_S, key=self.end) + 1
        return min(found, self.steps)

    def durations(self, begin: int, end: int) -> list[tuple[int, float]]:
        """`(steps, mean seconds)` of steps `begin` … `end`-1, at most one entry a stretch."""
        entries: list[tuple[int, float]] = []
        for stretch in self.stretches:
            low, high = max(begin, stretch.first), min(end, stretch.first + stretch.num_steps)
            if low < high:
                lasting = stretch.lasting(high - stretch.first) - stretch.lasting(low - stretch.first)
                entries.append((high - low, lasting / (high - low)))
        return entries


def _even(time: Callable[[int], float], first: int, last: int) -> list[tuple[int, int]]:
    """Ranges that together are `first` … `last`, in each of which times lie on a line."""
    if last - first < 2:
        return [(first, last)]
    middle = (first + last) // 2
    share = (middle - first) / (last - first)
    expected = time(first) + share * (time(last) - time(first))
    if abs(time(middle) - expected) <= _COLLINEAR * time(last):
        return [(first, last)]
    return [*_even(time, first, middle), *_even(time, middle + 1, last)]
