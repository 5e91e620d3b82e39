"""Memory that all ranks can read where ranks are threads: a `PeerMemory` on the CPU, or on one GPU."""

import threading
from typing import Any

import torch
from torch import Tensor

from splash_core.dist.order import CPU, order_on

_MEET_WITHIN_S = 120.0
"""A rank may come late because it compiles a kernel first."""


class ThreadMemory:
    """Every thread's memory, and how often the barrier was passed.

    On a GPU a barrier is enqueued on the current stream of each thread, once the threads have met.
    """

    def __init__(self, num_ranks: int, num_bytes: int, device: torch.device = CPU) -> None:
        self.num_bytes = num_bytes
        self.passed = 0
        self._views = [torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(num_ranks)]
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # other threads use it on other streams
        self._order = order_on(device)
        self._coming: list[Any] = []
        self._arrived: list[Any] = []
        """Marks of the ranks at the barrier that was passed last."""
        self._barrier = threading.Barrier(num_ranks, action=self._pass, timeout=_MEET_WITHIN_S)

    def _pass(self) -> None:
        self.passed += 1
        self._arrived, self._coming = self._coming, []

    def of(self, rank: int) -> Tensor:
        return self._views[rank]

    def barrier(self, channel: int = 0) -> None:
        del channel  # a thread has one barrier at a time
        self._coming.append(self._order.mark())
        self._barrier.wait()
        # Another list takes its place only when this thread, too, has come to the next barrier.
        for mark in self._arrived:
            self._order.after(mark)


class ThreadSharing:
    """A `Sharing` of ranks that are threads; memory is taken once."""

    def __init__(self, num_ranks: int, device: torch.device = CPU) -> None:
        self._num_ranks, self._device = num_ranks, device
        self._lock = threading.Lock()
        self._memory: ThreadMemory | None = None

    def take(self, num_bytes: int) -> ThreadMemory:
        with self._lock:
            if self._memory is None:
                self._memory = ThreadMemory(self._num_ranks, num_bytes, self._device)
        assert self._memory.num_bytes == num_bytes
        return self._memory
