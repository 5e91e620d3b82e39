"""Streams and events without a GPU: in virtual time, for order and overlap, or doing everything at once."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from splash_core.engine.lanes import Move
from splash_core.engine.stream_lane import Gpu
from splash_core.switch.chunks import CHUNKS_UNDER_WAY


class FakeStream:
    """Work in order; `time` is when its latest piece ends, in virtual seconds."""

    def __init__(self) -> None:
        self.time = 0.0

    def wait_event(self, event: "FakeEvent") -> None:
        assert event.time is not None, "waits for an event that nobody recorded: CUDA would not wait at all"
        self.time = max(self.time, event.time)

    def run(self, seconds: float) -> tuple[float, float]:
        began = self.time
        self.time += seconds
        return began, self.time

    def synchronize(self) -> None:
        """Virtual time is always up to date."""


class FakeEvent:
    """A point in a stream's virtual time."""

    def __init__(self) -> None:
        self.time: float | None = None

    def record(self, stream: FakeStream) -> None:
        self.time = stream.time

    def elapsed_time(self, later: "FakeEvent") -> float:
        assert self.time is not None
        assert later.time is not None
        return (later.time - self.time) * 1e3

    def synchronize(self) -> None:
        assert self.time is not None

    def query(self) -> bool:
        """Work runs as it is enqueued; an event that nobody recorded has not passed."""
        return self.time is not None


class FakeGpu(Gpu):
    """One compute stream, tracks, and a link that carries one exchange at a time. The host takes no time."""

    def __init__(self) -> None:
        self.main = FakeStream()
        self.stream = self.main
        self._tracks = [FakeStream() for _ in range(CHUNKS_UNDER_WAY)]
        self._link_free = 0.0

    @property
    @override
    def tracks(self) -> list[FakeStream]:
        return self._tracks

    @override
    def compute(self) -> FakeStream:
        return self.main

    @override
    def current(self) -> FakeStream:
        return self.stream

    @override
    def event(self) -> FakeEvent:
        return FakeEvent()

    @override
    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def exchange(self, seconds: float) -> None:
        """On the current stream, once the link is free."""
        self.stream.time = max(self.stream.time, self._link_free)
        _, self._link_free = self.stream.run(seconds)


@dataclass
class FakeMove(Move):
    """A move of given durations that notes when its halves ran."""

    gpu: FakeGpu
    transfer: float
    gather: float = 0.0
    scatter: float = 0.0
    issued: list["FakeMove"] = field(default_factory=list)
    """Shared by the moves of a test: those issued so far."""
    track: int = -1
    read_at: tuple[float, float] = (-1.0, -1.0)
    write_at: tuple[float, float] = (-1.0, -1.0)

    def read(self, track: int) -> None:
        assert self.gpu.stream is self.gpu.tracks[track]
        self.track = track
        self.issued.append(self)
        self.read_at = self.gpu.stream.run(self.gather)

    def write(self, track: int) -> None:
        assert self.track == track
        began = self.gpu.stream.time
        self.gpu.exchange(self.transfer)
        self.gpu.stream.run(self.scatter)
        self.write_at = began, self.gpu.stream.time


class ImmediateGpu(FakeGpu):
    """For real moves on CPU tensors: each happens when it is issued."""

    @override
    def on(self, stream: Any) -> Any:
        del stream
        return nullcontext()
