"""Doing the same computation again over the same memory: as a CUDA graph, or by running it again.

What is recorded reads its inputs from tensors that stay where they are; whoever replays it first writes
the new step's numbers into them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_WARM_UPS = 2
"""Runs before a capture: libraries pick algorithms and allocate on their first calls."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A computation that can be repeated.

    Attributes:
        replay: runs it over what its inputs hold now and returns its result, valid until the next replay.
        num_bytes: device memory that keeping it takes.
        record_s: seconds that recording took.
    """

    replay: Callable[[], Tensor]
    num_bytes: int
    record_s: float


class StepRecorder(Protocol):
    """Makes `Recorded` computations."""

    def held_bytes(self) -> int:
        """Device memory that tensors hold now; 0 where nobody counts."""
        ...

    def record(self, run: Callable[[], Tensor]) -> Recorded:
        """Record `run`, which is free of host synchronisation and of shapes that depend on data."""
        ...


class Rerun:
    """Runs the computation anew each time: any device, no speed, the truth that graphs are tested against."""

    def held_bytes(self) -> int:
        """See `StepRecorder`."""
        return 0

    def record(self, run: Callable[[], Tensor]) -> Recorded:
        """See `StepRecorder`."""
        return Recorded(replay=run, num_bytes=0, record_s=0.0)


class CudaGraphs:
    """Captures CUDA graphs that share one memory pool: only one of them runs at a time.

    Args:
        device: the rank's GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def held_bytes(self) -> int:
        """See `StepRecorder`."""
        return torch.cuda.memory_allocated(self._device)

    def record(self, run: Callable[[], Tensor]) -> Recorded:
        """See `StepRecorder`. All ranks record the same computations in the same order."""
        began = time.perf_counter()
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream(self._device).wait_stream(side)
        torch.cuda.synchronize(self._device)
        # Capturing begins by handing cached memory back: do it first, or it would count against the graph.
        torch.cuda.empty_cache()
        free_before, _ = torch.cuda.mem_get_info(self._device)
        graph = torch.cuda.CUDAGraph()
        # Another thread's calls (a transfer lane's) must not invalidate the capture.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = run()
        torch.cuda.synchronize(self._device)
        free_after, _ = torch.cuda.mem_get_info(self._device)

        def replay() -> Tensor:
            graph.replay()
            return result

        return Recorded(
            replay=replay,
            num_bytes=max(0, free_before - free_after),
            record_s=time.perf_counter() - began,
        )
