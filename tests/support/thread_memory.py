"""Memory that all ranks can read where ranks are threads: a `PeerMemory` on the CPU."""

import threading

import torch
from torch import Tensor


class ThreadMemory:
    """Every thread's memory, and how often the barrier was passed."""

    def __init__(self, num_ranks: int, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.passed = 0
        self._views = [torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(num_ranks)]
        self._barrier = threading.Barrier(num_ranks, action=self._count, timeout=30)

    def _count(self) -> None:
        self.passed += 1

    def of(self, rank: int) -> Tensor:
        return self._views[rank]

    def barrier(self, channel: int = 0) -> None:
        del channel  # a thread has one barrier at a time
        self._barrier.wait()
