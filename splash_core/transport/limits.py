"""What one rank may ask of one link. Invariant: limits that make no sense are refused when they are made."""

import math
from dataclasses import dataclass

from splash_core.errors import ConfigError
from splash_core.transport.classes import TrafficClass
from splash_core.transport.kinds import HOST
from splash_core.units import KIB

CHUNK_S, WINDOW_S = 0.005, 0.02
LEAST_CHUNK_BYTES = 64 * KIB
"""Smaller chunks would cost more than they spare others."""

LEAST_IN_FLIGHT = 2
"""Of a slow link: one piece on it, one on its way there."""

LATE_S = 0.1
"""A sender that was late, by no more than this, makes up for the budget that it has not used."""

SWITCH_SHARE = 1 / 8
"""Of the budget, what others have while a switch is under way and its pause is spent: a switch that would
fill the link alone then takes 1 / (1 - 1/8) = 1.15 times as long."""

_PRECOPY_PATIENCE = 8
"""How much longer than handoffs precopies may be passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """What one rank may ask of one link."""

    rate_bps: float = math.inf
    """Bytes per second that all classes share."""
    chunk_bytes: int = HOST.chunk_bytes
    """Largest chunk: nobody waits for less than what is being sent."""
    in_flight: int = 4
    """Largest chunks under way at a time, or more smaller ones; two leave a fast link idle between them."""
    pause_s: float = 0.25
    """Longest time that a switch holds handoffs back."""
    handoff_patience_s: float = 0.25
    """How long handoffs may be passed over by what is more urgent."""

    @classmethod
    def within(cls, rate_bps: float, *, chunk_bytes: int, in_flight: int, pause_s: float) -> "LinkLimits":
        """Limits whose chunks last no longer than `CHUNK_S` where the budget is so small that they would.

        What a collective finds ahead of itself is then a moment, whatever the link; a few more of such chunks
        are under way, so that a sender that wakes late leaves no gap.
        """
        shortest = max(int(min(rate_bps * CHUNK_S, chunk_bytes)), min(LEAST_CHUNK_BYTES, chunk_bytes))
        window = min(rate_bps * WINDOW_S, float(chunk_bytes * in_flight))
        more = max(min(in_flight, LEAST_IN_FLIGHT), round(window / shortest))
        return cls(rate_bps=rate_bps, chunk_bytes=shortest, in_flight=more, pause_s=pause_s)

    def __post_init__(self) -> None:
        for name in ("rate_bps", "chunk_bytes", "in_flight", "handoff_patience_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} of a link must be above 0, got {getattr(self, name)}")
        if not 0 <= self.pause_s < math.inf:
            raise ConfigError(f"pause_s of a link must be finite and not negative, got {self.pause_s}")

    @property
    def window_bytes(self) -> int:
        """What may be under way at a time."""
        return self.chunk_bytes * self.in_flight

    @property
    def burst_bytes(self) -> float:
        """What may go beyond the budget after a rest, and never more than `window_bytes` of it at a time."""
        return self.window_bytes + (self.rate_bps * LATE_S if self.rate_bps < math.inf else 0.0)

    def patience_s(self, traffic: TrafficClass) -> float:
        """How long a class may be passed over."""
        factor = {TrafficClass.HANDOFF: 1.0, TrafficClass.PRECOPY: _PRECOPY_PATIENCE}
        return self.handoff_patience_s * factor.get(traffic, math.inf)
