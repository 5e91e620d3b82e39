"""A switch's moves on CUDA streams of their own, beside the stream that computes.

Invariant: the host waits for nothing before the step has ended; streams wait for each other's events.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from typing_extensions import override

from splash_core.engine.lanes import Lane, Move, SwitchTimes
from splash_core.switch.chunks import CHUNKS_UNDER_WAY
from splash_core.units import LAYERS_AHEAD


class Gpu(Protocol):
    """What a stream lane needs of CUDA; streams and events are torch's, or a test's."""

    @property
    def tracks(self) -> Sequence[Any]:
        """The streams on which moves take turns."""
        ...

    def compute(self) -> Any:
        """The stream on which the step computes."""
        ...

    def current(self) -> Any:
        """The stream on which work is enqueued now."""
        ...

    def event(self) -> Any:
        """A new event that measures time."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """A block whose work is enqueued on `stream`."""
        ...


class CudaGpu(Gpu):
    """Streams of one device, made once: torch takes them from a small pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Before other work where both are ready: a gather or scatter is short, and a layer waits for it.
        self._tracks = tuple(torch.cuda.Stream(device, priority=-1) for _ in range(CHUNKS_UNDER_WAY))

    @property
    @override
    def tracks(self) -> Sequence[torch.cuda.Stream]:
        return self._tracks

    @override
    def compute(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    @override
    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    @override
    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    @override
    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)


class StreamLane(Lane):
    """Moves on streams beside the compute stream; the host waits for nothing.

    All is enqueued by the step's own thread, in the order of the plan, so that every rank issues the same
    collectives in the same order. A few layers are enqueued ahead of the layer that computes: enough for the
    streams never to run dry, few enough that a short step does not first pay for enqueuing all of them. The
    first layers are enqueued one by one: a large history has ten chunks and more a layer, and layer 0 would
    wait for the host to enqueue the next layers', too.
    """

    def __init__(self, gpu: Gpu, *, layers_ahead: int = LAYERS_AHEAD) -> None:
        """Nothing is enqueued yet.

        Args:
            gpu: the rank's streams.
            layers_ahead: most layers that are enqueued before the layer that computes; at least 1.
        """
        self._gpu = gpu
        self._ahead = max(1, layers_ahead)
        self._layers: Sequence[Iterable[Move]] = ()
        self._turn = 0
        self._read: Any = None
        """Recorded after the latest read."""
        self._boundary: Any = None
        self._before: list[Any] = []
        self._began: list[Any] = []
        self._done: list[list[Any]] = []
        """Per enqueued layer: what its readers have to wait for."""
        self._waited = 0
        self._waits: list[tuple[Any, Any]] = []

    @override
    def start(self, before: Sequence[Move], layers: Sequence[Iterable[Move]]) -> None:
        self._layers = layers
        self._boundary = self._mark(self._gpu.compute())
        for track in self._gpu.tracks:
            track.wait_event(self._boundary)
        self._before = self._run(before)
        for track in self._gpu.tracks:
            for done in self._before:
                track.wait_event(done)
        self._enqueue(1)

    @override
    def wait_layer(self, layer: int) -> None:
        self._enqueue(layer + 1 + min(self._ahead, layer))
        compute = self._gpu.compute()
        began = self._mark(compute)
        for events in (self._before, *self._done[self._waited : layer + 1]):
            for event in events:
                compute.wait_event(event)
        self._before = []
        self._waited = max(self._waited, layer + 1)
        self._waits.append((began, self._mark(compute)))

    @override
    def finish(self) -> None:
        self.wait_layer(len(self._layers) - 1)

    @override
    def times(self) -> SwitchTimes:
        """As in `Lane`; the host waits here until the step's waits are over."""
        self._waits[-1][1].synchronize()
        waits = [_seconds(began, ended) for began, ended in self._waits]
        transfers: list[float] = []
        free = 0.0
        for began, done in zip(self._began, self._done, strict=True):
            start = max(free, _seconds(self._boundary, began))
            free = max([start, *(_seconds(self._boundary, event) for event in done)])
            transfers.append(free - start)
        return SwitchTimes(
            first_wait_s=waits[0], later_wait_s=sum(waits[1:]), layer_transfer_s=tuple(transfers)
        )

    def _enqueue(self, end: int) -> None:
        """Enqueue the moves of all layers below `end` that are not yet."""
        for moves in self._layers[len(self._done) : end]:
            self._began.append(self._mark(self._next_track()))
            self._done.append(self._run(moves))

    def _run(self, moves: Iterable[Move]) -> list[Any]:
        """Enqueue moves in turn; returns an event for each track that they end on."""
        ends: dict[int, Any] = {}
        for move in moves:
            track = self._turn % len(self._gpu.tracks)
            self._turn += 1
            stream = self._gpu.tracks[track]
            if self._read is not None:
                stream.wait_event(self._read)
            with self._gpu.on(stream):
                move.read(track)
                self._read = self._mark(stream)
                move.write(track)
                ends[track] = self._mark(stream)
        return list(ends.values())

    def _next_track(self) -> Any:
        return self._gpu.tracks[self._turn % len(self._gpu.tracks)]

    def _mark(self, stream: Any) -> Any:
        event = self._gpu.event()
        event.record(stream)
        return event


def _seconds(began: Any, ended: Any) -> float:
    return began.elapsed_time(ended) / 1e3
