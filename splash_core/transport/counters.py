"""What has moved, by class of traffic and by peer: plain counts, to be summed over ranks and shown.

Whoever moves bytes counts here, and whoever schedules links may add counts of its own (`CounterSource`).
Invariant: every count but `IN_FLIGHT` only grows during a process's life.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from splash_core.transport.classes import TrafficClass


class TrafficCount(StrEnum):
    """What is counted. A metric's name ends with it."""

    BYTES = "bytes_total"
    """Bytes that have landed."""
    OPERATIONS = "operations_total"
    """Operations that have ended, well or not."""
    FAILURES = "failures_total"
    """Of those, that failed or were cancelled."""
    IN_FLIGHT = "in_flight"
    """Operations that have begun and not ended."""
    HELD_SECONDS = "held_seconds_total"
    """Time that operations waited for what they are to carry to be computed."""
    WAITS = "waits_total"
    """Pieces of operations that waited for their turn on a link."""
    WAIT_SECONDS = "wait_seconds_total"
    """Time that they waited."""
    MOVING_SECONDS = "moving_seconds_total"
    """Time from an operation's first byte to its end, waits for its turn included."""


@dataclass(frozen=True, slots=True, order=True)
class TrafficSample:
    """One count."""

    count: TrafficCount
    traffic: str
    """`switch`, `handoff` or `precopy`."""
    peer: str
    """`group/rank` of the other end; empty within a group."""
    value: float


class CounterSource(Protocol):
    """Something that counts."""

    def samples(self) -> Sequence[TrafficSample]:
        """The counts of the moment."""
        ...


class TrafficCounters(CounterSource):
    """Counts operations. Used by one thread."""

    def __init__(self) -> None:
        self._values: dict[tuple[TrafficCount, str, str], float] = {}

    def began(self, traffic: TrafficClass, peer: str) -> None:
        """An operation is under way, or held back."""
        self._add(TrafficCount.IN_FLIGHT, traffic, peer, 1)

    def ended(
        self,
        traffic: TrafficClass,
        peer: str,
        *,
        num_bytes: int,
        failed: bool,
        held_s: float = 0.0,
        moving_s: float = 0.0,
    ) -> None:
        """It is over and quiet."""
        self._add(TrafficCount.IN_FLIGHT, traffic, peer, -1)
        self._add(TrafficCount.FAILURES, traffic, peer, failed)
        self._add(TrafficCount.HELD_SECONDS, traffic, peer, held_s)
        self._add(TrafficCount.MOVING_SECONDS, traffic, peer, moving_s)
        self.moved(traffic, peer, num_bytes=num_bytes)

    def moved(self, traffic: TrafficClass, peer: str, *, num_bytes: int) -> None:
        """An operation that was not seen under way has moved so many bytes."""
        self._add(TrafficCount.BYTES, traffic, peer, num_bytes)
        self._add(TrafficCount.OPERATIONS, traffic, peer, 1)

    def samples(self) -> tuple[TrafficSample, ...]:
        """See `CounterSource`."""
        return tuple(TrafficSample(*key, value) for key, value in sorted(self._values.items()))

    def _add(self, count: TrafficCount, traffic: TrafficClass, peer: str, value: float) -> None:
        key = (count, traffic_name(traffic), peer)
        self._values[key] = self._values.get(key, 0.0) + value


def traffic_name(traffic: TrafficClass) -> str:
    """The class as metrics call it."""
    return traffic.name.lower()


def summed(parts: Iterable[Iterable[TrafficSample]]) -> tuple[TrafficSample, ...]:
    """The counts of several sources together."""
    totals: dict[tuple[TrafficCount, str, str], float] = {}
    for sample in (sample for part in parts for sample in part):
        key = (sample.count, sample.traffic, sample.peer)
        totals[key] = totals.get(key, 0.0) + sample.value
    return tuple(TrafficSample(*key, value) for key, value in sorted(totals.items()))
