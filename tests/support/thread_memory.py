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


class ThreadSharing:
    """A `Sharing` of ranks that are threads; memory is taken once."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._lock = threading.Lock()
        self._memory: ThreadMemory | None = None

    def take(self, num_bytes: int) -> ThreadMemory:
        with self._lock:
            if self._memory is None:
                self._memory = ThreadMemory(self._num_ranks, num_bytes)
        assert self._memory.num_bytes == num_bytes
        return self._memory
