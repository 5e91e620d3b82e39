"""Where a switch's moves run while the step computes: on a thread here, on a GPU on streams (`stream_lane`).

A *move* is one grouped transfer, in two halves: `read` takes its sources into staging, `write` exchanges and
writes its destinations. Moves are issued in one order on all ranks. What every lane guarantees: reads happen
in that order, a move writes only after all reads up to its own, moves before the layers are complete before
any layer's move begins, and `wait_layer(i)` lets what is computed next see layer i's state and all before it.
"""

import queue
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from typing_extensions import override


class Move(Protocol):
    """One grouped transfer.

    Moves take turns on tracks, each with staging of its own: moves of one track never overlap, but a move's
    gather runs beside the exchange of the one before.
    """

    def read(self, track: int) -> None:
        """Take the sources into staging."""
        ...

    def write(self, track: int) -> None:
        """Exchange with the other ranks, and write the destinations."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTimes:
    """How long a switching step waited for its state, and what the moves took."""

    first_wait_s: float = 0.0
    """The first wait: for layer 0, or in a blocking switch for everything."""
    later_wait_s: float = 0.0
    """All later waits."""
    layer_transfer_s: tuple[float, ...] = ()
    """Time that each layer's moves took: to its last write, from its first read or, where that began earlier,
    from the last write of the layer before. What runs before the layers is not counted."""

    @property
    def wait_s(self) -> float:
        """All waits."""
        return self.first_wait_s + self.later_wait_s


class Lane(Protocol):
    """Runs the moves of one switch ahead of the layers that need them. Use once."""

    def start(self, before: Sequence[Move], layers: Sequence[Iterable[Move]]) -> None:
        """Begin.

        Args:
            before: moves that are complete before any layer's begin.
            layers: each layer's moves; `[L]`, some of them empty. A layer's are looked at once, in its turn.
        """
        ...

    def wait_layer(self, layer: int) -> None:
        """Let what is computed next see the state of layers up to `layer`.

        Raises:
            Exception: whatever a move failed with; the group is then to end.
        """
        ...

    def finish(self) -> None:
        """Wait for all layers."""
        ...

    def times(self) -> SwitchTimes:
        """What it took; called once after `finish`, and not before the step's results are needed."""
        ...


class ThreadLane(Lane):
    """Moves on a thread, one after the other, beside a step that computes on the CPU."""

    def __init__(self) -> None:
        self._ready: queue.SimpleQueue[None] = queue.SimpleQueue()
        """One entry for each layer that is in place, and one for a failure."""
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._num_layers = 0
        self._layers_ready = 0
        self._waits: list[float] = []
        self._transfers: list[float] = []

    @override
    def start(self, before: Sequence[Move], layers: Sequence[Iterable[Move]]) -> None:
        self._num_layers = len(layers)
        self._thread = threading.Thread(
            target=self._run, args=(before, layers), name="splash-switch", daemon=True
        )
        self._thread.start()

    @override
    def wait_layer(self, layer: int) -> None:
        began = time.perf_counter()
        while self._layers_ready <= layer:
            self._ready.get()
            if self._failure is not None:
                raise self._failure
            self._layers_ready += 1
        self._waits.append(time.perf_counter() - began)

    @override
    def finish(self) -> None:
        self.wait_layer(self._num_layers - 1)
        if self._thread is not None:
            began = time.perf_counter()
            self._thread.join()
            self._waits.append(time.perf_counter() - began)
        if self._failure is not None:
            raise self._failure

    @override
    def times(self) -> SwitchTimes:
        return SwitchTimes(
            first_wait_s=sum(self._waits[:1]),
            later_wait_s=sum(self._waits[1:]),
            layer_transfer_s=tuple(self._transfers),
        )

    def _run(self, before: Sequence[Move], layers: Sequence[Iterable[Move]]) -> None:
        try:
            with torch.inference_mode():  # thread-local: the step's own does not reach this thread
                _run_all(before)
                for moves in layers:
                    began = time.perf_counter()
                    _run_all(moves)
                    self._transfers.append(time.perf_counter() - began)
                    self._ready.put(None)
        except Exception as failure:  # handed to the step, which raises it
            self._failure = failure
            self._ready.put(None)


def _run_all(moves: Iterable[Move]) -> None:
    for move in moves:
        move.read(0)
        move.write(0)
