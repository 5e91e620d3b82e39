"""Barriers among GPUs, one at a time on each: what keeps two streams of barriers from waiting for each other.

A barrier is a kernel that waits for its peers. Attention kernels launched cooperatively need all
multiprocessors at once: while one stands before them, nothing that was ready later may start there. With a
barrier of one stream waiting on one GPU and a barrier of another stream on the next, either may then keep the
kernel that the other one waits for from starting, for ever. Invariant: a rank's barriers run in the order of
calls, which is the same on all ranks; so the one that waits is the one that its peers come to next.
"""

from typing import Any

from torch import Tensor
from typing_extensions import override

from splash_core.dist.peer_memory import PeerMemory
from splash_core.engine.stream_lane import Gpu


class BarriersInTurn(PeerMemory):
    """Peer memory used on several streams.

    Args:
        memory: the memory.
        gpu: the rank's streams.
    """

    def __init__(self, memory: PeerMemory, gpu: Gpu) -> None:
        self.num_bytes = memory.num_bytes
        self._memory = memory
        self._gpu = gpu
        self._last: Any = None
        """Recorded after the latest barrier."""

    @override
    def of(self, rank: int) -> Tensor:
        """`[num_bytes]` uint8: that rank's memory."""
        return self._memory.of(rank)

    @override
    def barrier(self, channel: int = 0) -> None:
        """On the current stream, after the barrier before, whatever stream that was on."""
        stream = self._gpu.current()
        if self._last is not None:
            stream.wait_event(self._last)
        self._memory.barrier(channel)
        self._last = self._gpu.event()
        self._last.record(stream)
