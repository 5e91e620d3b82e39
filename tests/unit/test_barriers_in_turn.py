"""Barriers on two streams of a rank never stand beside each other."""

from torch import Tensor

from splash_core.engine.in_turn import BarriersInTurn
from tests.support.fake_gpu import FakeGpu
from tests.support.thread_memory import ThreadMemory

BARRIER_S = 3.0


class SlowBarriers:
    """Barriers whose peers come late, and when each ran."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.num_bytes = 32
        self.ran: list[tuple[int, float, float]] = []
        self._gpu = gpu
        self._memory = ThreadMemory(1, self.num_bytes)

    def of(self, rank: int) -> Tensor:
        return self._memory.of(rank)

    def barrier(self, channel: int = 0) -> None:
        began, ended = self._gpu.stream.run(BARRIER_S)
        self.ran.append((channel, began, ended))


def test_a_barrier_begins_when_the_one_before_is_over_on_any_stream() -> None:
    gpu = FakeGpu()
    slow = SlowBarriers(gpu)
    memory = BarriersInTurn(slow, gpu)
    for channel in (0, 1, 1, 0):
        with gpu.on(gpu.tracks[channel]):
            gpu.stream.run(1.0)
            memory.barrier(channel)
    assert slow.ran == [(0, 1.0, 4.0), (1, 4.0, 7.0), (1, 8.0, 11.0), (0, 11.0, 14.0)]


def test_what_else_a_stream_does_waits_for_nobody() -> None:
    gpu = FakeGpu()
    memory = BarriersInTurn(SlowBarriers(gpu), gpu)
    with gpu.on(gpu.tracks[0]):
        memory.barrier(0)
    with gpu.on(gpu.tracks[1]):
        assert gpu.stream.run(1.0) == (0.0, 1.0)
        assert memory.of(0).numel() == memory.num_bytes
