"""A device without a GPU: its memory is an anonymous file, its stream a thread that copies in order.

Two processes that have one each share memory as those of two GPUs do, by descriptor. A test may hold the
stream up, and look at what was asked of it.
"""

import ctypes
import mmap
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from splash_core.dist.fd_passing import anonymous_file
from splash_core.transport.device_memory import Allocation, DeviceDriver
from splash_core.transport.driver_errors import DriverError, OutOfDeviceMemory
from splash_core.transport.host_copies import HostCopies
from splash_core.transport.kinds import DeviceKind
from splash_core.transport.memory import Copy, Landing

GRANULE = 4096
"""Mappings are whole granules, as on a GPU."""
FAKE = DeviceKind(
    name="fake",
    device="fake",
    chunk_bytes=GRANULE,
    driver="tests.support.fake_device:FakeDriver",
    count="",
    needs="nothing",
    look="the test",
    look_at_links="its links",
)
"""A further kind beside those of the product: nothing but this module knows it."""


@dataclass(eq=False)
class FakeLanding(Landing):
    """Copies in the queue of the stream."""

    done: threading.Event = field(default_factory=threading.Event)
    error: DriverError | None = None

    @property
    @override
    def over(self) -> bool:
        done = self.done.is_set()
        if done and self.error is not None:
            raise self.error
        return done


class FakeDriver(DeviceDriver):
    """One device, whose threads must have entered."""

    kind = FAKE

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.may_copy = threading.Event()
        """Cleared: the stream stands still, and what is enqueued waits."""
        self.may_copy.set()
        self.failing = ""
        """What the next copy fails with."""
        self.refusing = ""
        """What the next allocation is refused with."""
        self.enqueued = 0
        self.zeroed = False
        self.mapped: dict[int, mmap.mmap] = {}
        self._own: dict[int, mmap.mmap] = {}
        self._entered = threading.local()
        self._stream: queue.SimpleQueue[tuple[tuple[Copy, ...], FakeLanding]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="fake-stream", daemon=True).start()

    @override
    def enter_thread(self) -> None:
        self._entered.here = True

    def check_entered(self) -> None:
        """CUDA would open a context on another GPU, in silence."""
        assert getattr(self._entered, "here", False), f"{threading.current_thread().name} has not entered"

    @override
    def allocate(self, num_bytes: int) -> Allocation:
        self.check_entered()
        if num_bytes > 1 << 40:
            raise OutOfDeviceMemory("out of memory")
        if self.refusing:
            raise DriverError(self.refusing)
        fd = anonymous_file("fake-device", _room(num_bytes))
        address, mapping = _map(fd, num_bytes)
        mapping.write(b"\xff" * num_bytes)  # what was in it before
        self._own[address] = mapping
        return Allocation(address=address, fd=fd)

    @override
    def tensor(self, address: int, num_bytes: int) -> Tensor:
        return torch.frombuffer(self._own[address], dtype=torch.uint8)[:num_bytes]

    @override
    def zero(self, bytes_B: Tensor) -> None:
        bytes_B.zero_()
        self.zeroed = True

    @override
    def map(self, fd: int, num_bytes: int) -> int:
        self.check_entered()
        if os.fstat(fd).st_size != _room(num_bytes):
            raise DriverError(f"{num_bytes} bytes are not the allocation that was exported")
        address, mapping = _map(fd, num_bytes)
        self.mapped[address] = mapping
        return address

    @override
    def unmap(self, address: int, num_bytes: int) -> None:
        self.check_entered()
        del num_bytes
        del self.mapped[address]

    @override
    def copy(self, copies: Sequence[Copy]) -> FakeLanding:
        self.check_entered()
        self.enqueued += len(copies)
        landing = FakeLanding()
        self._stream.put((tuple(copies), landing))
        return landing

    def _run(self) -> None:
        while True:
            copies, landing = self._stream.get()
            self.may_copy.wait()
            if self.failing:
                landing.error = DriverError(self.failing)
            else:
                HostCopies().start(copies)
            landing.done.set()


def _room(num_bytes: int) -> int:
    return -(-num_bytes // GRANULE) * GRANULE


def _map(fd: int, num_bytes: int) -> tuple[int, mmap.mmap]:
    mapping = mmap.mmap(fd, _room(num_bytes))
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping)), mapping
