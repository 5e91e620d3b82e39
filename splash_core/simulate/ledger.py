"""What a simulated run was like: times of every request, gaps between tokens, switches, layouts over time."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from splash_core.layout.layout import Layout
from splash_core.switch.manifest import SwitchMode

TOO_LONG = "longer than a group can hold"
"""Why a request was not served."""
_BINS_PER_E = 200
"""Gaps are kept to half a percent."""


@dataclass(slots=True)
class Times:
    """One request's moments, seconds of simulated time."""

    key: int
    prompt_tokens: int
    output_tokens: int
    arrived_s: float
    first_s: float = math.nan
    finished_s: float = math.nan
    groups: tuple[str, ...] = ()
    """Where it was placed."""

    @property
    def ttft_s(self) -> float:
        """To the first token."""
        return self.first_s - self.arrived_s

    @property
    def latency_s(self) -> float:
        """To the last token."""
        return self.finished_s - self.arrived_s

    @property
    def mean_gap_s(self) -> float:
        """Between its tokens; 0 for a single one."""
        return (self.finished_s - self.first_s) / max(self.output_tokens - 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """One switch of one group."""

    time_s: float
    group: str
    layout_from: Layout
    layout_to: Layout
    exposed_s: float
    mode: SwitchMode = SwitchMode.OVERLAPPED
    ahead_steps: int = 0
    """Ordinary steps that copied ahead."""
    ahead_s: float = 0.0
    """By what those were longer."""


@dataclass(slots=True)
class Ledger:
    """Of one run."""

    finished: list[Times] = field(default_factory=list[Times])
    refused: Counter[str] = field(default_factory=Counter[str])
    """Requests that were not served, by reason."""
    switches: list[Switched] = field(default_factory=list[Switched])
    starts: dict[str, Layout] = field(default_factory=dict[str, Layout])
    """The layout that each group started in."""
    steps: Counter[Layout] = field(default_factory=Counter[Layout])
    gaps: Counter[int] = field(default_factory=Counter[int])

    def gap(self, seconds: float, count: int = 1) -> None:
        """So many tokens came so long after the one before."""
        self.gaps[round(math.log(max(seconds, 1e-9)) * _BINS_PER_E)] += count

    def gap_percentile(self, share: float) -> float:
        """The gap that `share` of all gaps do not exceed, to half a percent; 0 without any."""
        total, seen = self.gaps.total(), 0
        for bin_ in sorted(self.gaps):
            seen += self.gaps[bin_]
            if seen >= share * total:
                return math.exp(bin_ / _BINS_PER_E)
        return 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed; 0 without any."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
