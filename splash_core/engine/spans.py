"""How long a step takes, and whether it has ended, without the host waiting for it.

Invariant: a span begins when the device could begin, so spans of steps that are enqueued behind each other do
not overlap.
"""

import time
from collections.abc import Callable
from typing import Protocol

from typing_extensions import override

from splash_core.engine.progress import StreamFence
from splash_core.engine.stream_lane import Gpu


class Span(Protocol):
    """Made where a step begins."""

    def end(self) -> None:
        """All of the step has been asked for. Called once."""
        ...

    @property
    def passed(self) -> bool:
        """True once the device has done it all."""
        ...

    def seconds(self) -> float:
        """How long it took; waits until it has `passed`."""
        ...


class HostSpan(Span):
    """Of a step that computes while it is asked for."""

    def __init__(self) -> None:
        self._began = self._ended = time.perf_counter()

    @override
    def end(self) -> None:
        self._ended = time.perf_counter()

    @property
    @override
    def passed(self) -> bool:
        return True

    @override
    def seconds(self) -> float:
        return self._ended - self._began


class StreamSpan(Span):
    """Between two events of the stream that computes.

    Args:
        gpu: the rank's streams.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._stream = gpu.compute()
        self._began, self._ended = gpu.event(), gpu.event()
        self._began.record(self._stream)

    @override
    def end(self) -> None:
        self._ended.record(self._stream)

    @property
    @override
    def passed(self) -> bool:
        return self._ended.query()

    @override
    def seconds(self) -> float:
        self._ended.synchronize()
        return self._began.elapsed_time(self._ended) / 1e3


def fences_of(gpu: Gpu | None) -> Callable[[], StreamFence] | None:
    """What marks all that is enqueued so far on the stream that computes; None where nothing is enqueued."""
    if gpu is None:
        return None

    def fence() -> StreamFence:
        event = gpu.event()
        event.record(gpu.compute())
        return event

    return fence
