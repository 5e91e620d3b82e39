"""How far a rank is with its steps: written by the thread that computes, asked by the one that pushes.

Invariant: progress never goes back, and layers that it says are done have happened: on a device with streams
each mark carries an event of the computing stream, and counts once that event has passed.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from splash_core.ids import StepId


class StreamFence(Protocol):
    """Something enqueued on a stream, such as a CUDA event."""

    def query(self) -> bool:
        """True once everything before it has happened."""
        ...


class StepProgress:
    """Marks of one rank's steps."""

    def __init__(self, num_layers: int) -> None:
        """Nothing has run yet.

        Args:
            num_layers: of the model: all of them are done when a step is.
        """
        self._num_layers = num_layers
        self._lock = threading.Lock()
        self._step = StepId(0)
        self._done = (StepId(0), num_layers)
        """Steps begin with 1: what is to wait for step 0 waits for nothing."""
        self._marks: deque[tuple[tuple[StepId, int], StreamFence]] = deque()

    def begin(self, step: StepId) -> None:
        """A step begins: all before it have been enqueued."""
        self._step = step

    def reached(self, layers: int, fence: Callable[[], StreamFence] | None = None) -> None:
        """The first `layers` layers of the step are computed, or enqueued before a fence that is made now."""
        mark = (self._step, layers)
        with self._lock:
            if fence is None:
                self._done = max(self._done, mark)
            else:
                self._marks.append((mark, fence()))

    def end(self, fence: Callable[[], StreamFence] | None = None) -> None:
        """All of the step is computed, or enqueued."""
        self.reached(self._num_layers, fence)

    def layers_done(self, step: StepId) -> int:
        """So many first layers of a step have been computed; all of them for a step that is over."""
        self.poll()
        done_step, layers = self._done
        if done_step != step:
            return self._num_layers if done_step > step else 0
        return layers

    def poll(self) -> None:
        """Drop fences that have passed; to be called now and then, also when nobody waits for a layer."""
        with self._lock:
            while self._marks and self._marks[0][1].query():
                self._done = max(self._done, self._marks.popleft()[0])
