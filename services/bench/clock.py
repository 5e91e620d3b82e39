"""Clocks for steps and single operations: events of the computing stream on GPUs, the wall clock on CPU.

Invariant: a time is read only after the device has caught up, so `Clock.ms` never stops a stream that is
being measured.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

from splash_core.dist.comm import Comm
from splash_core.engine.marks import StepPoint

_CYCLES_PER_MS = 1.98e6
"""Of a Hopper GPU at its highest clock; at a lower one a stream is held longer."""

_LAUNCH_MS = 3.0
"""What enqueuing one operation takes at most, with room to spare."""


class Clock(Protocol):
    """Marks points in time, and tells how far apart they are."""

    def mark(self) -> Any:
        """This point in time of the computing stream."""
        ...

    def ms(self, begin: Any, end: Any) -> float:
        """Milliseconds between two marks; call `catch_up` first."""
        ...

    def hold(self, ms: float) -> None:
        """Keep the computing stream busy for about so long, while the host enqueues what is to be timed."""
        ...

    def catch_up(self) -> None:
        """Return once the device has done all that was asked of it."""
        ...


class CpuClock(Clock):
    """The wall clock."""

    def mark(self) -> float:
        """Seconds, monotonic."""
        return time.perf_counter()

    def ms(self, begin: float, end: float) -> float:
        """Milliseconds between two marks."""
        return (end - begin) * 1e3

    def hold(self, ms: float) -> None:
        """Nothing: the host computes itself."""

    def catch_up(self) -> None:
        """Nothing runs behind the caller's back."""


class CudaClock(Clock):
    """Events on the current stream of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """An event that the stream passes in its turn."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def ms(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Milliseconds between two events that have passed."""
        return begin.elapsed_time(end)

    def hold(self, ms: float) -> None:
        """A kernel that counts clock cycles."""
        torch.cuda._sleep(int(ms * _CYCLES_PER_MS))

    def catch_up(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self._device)


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return CpuClock() if device.type == "cpu" else CudaClock(device)


def operation_ms(
    clock: Clock, comm: Comm, operation: Callable[[int], object], *, reps: int, warmup: int
) -> list[float]:
    """Times of `operation(0) …` on this rank, back to back, after `warmup` that are not counted.

    On GPUs the stream is held until the host has enqueued all repetitions: what is timed is the device's
    work, not the launching of it, which in a switch hides behind the layers that compute.
    """
    for rep in range(warmup):
        operation(rep)
    clock.catch_up()
    comm.barrier()
    clock.hold(reps * _LAUNCH_MS)
    marks = [clock.mark()]
    for rep in range(reps):
        operation(warmup + rep)
        marks.append(clock.mark())
    clock.catch_up()
    return [clock.ms(begin, end) for begin, end in pairwise(marks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """Where the time of one rank's step went, in milliseconds."""

    total: float
    """From the common start until the device had finished."""
    start: float
    """From BEGIN to MOVED: what a switch does before the rows."""
    waits: tuple[float, ...]
    """Per layer, from WANTED to READY."""
    computes: tuple[float, ...]
    """Per layer, from READY to the next layer's WANTED; the last one's until END."""


class StepTimer:
    """Collects a step's marks. Its `mark` is given to the engine.

    Args:
        clock: of the rank's device.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[tuple[StepPoint, Any]] | None = None
        """None while nothing is timed."""

    def mark(self, point: StepPoint, layer: int) -> None:
        """See `engine.marks`."""
        del layer  # points come in order
        if self._marks is not None:
            self._marks.append((point, self._clock.mark()))

    def time(self, comm: Comm, step: Callable[[], object]) -> StepTiming:
        """Run one step from a common start."""
        self._clock.catch_up()
        comm.barrier()
        self._clock.catch_up()
        marks = self._marks = []
        began = time.perf_counter()
        step()
        self._clock.catch_up()
        total = (time.perf_counter() - began) * 1e3
        self._marks = None
        return self._timing(total, marks)

    def _timing(self, total: float, marks: Sequence[tuple[StepPoint, Any]]) -> StepTiming:
        at = {point: [mark for seen, mark in marks if seen is point] for point in StepPoint}
        wanted, ready = at[StepPoint.WANTED], at[StepPoint.READY]
        ends = [*wanted[1:], *at[StepPoint.END]][: len(ready)]
        between = self._clock.ms
        return StepTiming(
            total=total,
            start=sum(map(between, at[StepPoint.BEGIN], at[StepPoint.MOVED])),
            waits=tuple(map(between, wanted, ready)),
            computes=tuple(map(between, ready, ends)),
        )


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the values lie, linear between neighbours."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)
