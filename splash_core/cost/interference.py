"""How much a transfer slows down the step that it hides behind: docs/model.md §6, equation (13).

    ι = (t_beside − t_plain − (τ − h)) / h,  h = min(τ, t_plain)

A step is measured in pairs, alone and beside a transfer that takes τ by itself. By what the transfer is
longer than the step it is exposed: that is no interference.
Invariant: where nothing was measured that tells, a profile stays as it is.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from splash_core.cost.profile import HardwareProfile

_TELLING = 0.05
"""Of a step: a transfer that takes less of it tells nothing that noise would not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One kind of step, and one transfer."""

    transfer_s: float
    """τ."""
    pairs: tuple[tuple[float, float], ...]
    """Times of the step alone and beside the transfer."""

    @property
    def telling(self) -> bool:
        """Whether the transfer is long enough beside the step."""
        return self.transfer_s >= _TELLING * statistics.median(plain for plain, _ in self.pairs)

    @property
    def slowed(self) -> float:
        """Seconds of slow-down per second that hides: the median of the pairs."""
        return statistics.median(self._slowed(*pair) for pair in self.pairs)

    def _slowed(self, plain_s: float, beside_s: float) -> float:
        hidden = min(self.transfer_s, plain_s)
        return (beside_s - plain_s - (self.transfer_s - hidden)) / hidden


def with_interference(profile: HardwareProfile, measured: Sequence[Beside]) -> HardwareProfile:
    """The profile with what was measured, each kind of step counting alike; never below 0."""
    told = [one for one in measured if one.telling]
    if not told:
        return profile
    provenance = profile.provenance
    pairs = f"interference of {sum(len(one.pairs) for one in told)} pairs of steps"
    note = f"{provenance.note}; {pairs}" if provenance.note else pairs
    return replace(
        profile,
        interference=max(statistics.fmean(one.slowed for one in told), 0.0),
        provenance=replace(provenance, note=note),
    )
