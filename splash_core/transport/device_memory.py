"""The memory of a rank's arena on a GPU, and copies from there into arenas on GPUs of the same host.

The arena is one allocation of the driver's that a file descriptor stands for, as one does for host memory: a
peer that has it maps the memory into its own GPU's addresses, and copies over NVLink, or within one GPU, on a
stream of its own. Invariant: a copy counts as landed only after the device has passed an event behind it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from splash_core.errors import ConfigError, Unavailable
from splash_core.transport.driver_errors import DriverError, OutOfDeviceMemory
from splash_core.transport.kinds import DeviceKind
from splash_core.transport.memory import Copies, Copy, Landing, Memory, Offer, Target, check_kind
from splash_core.units import format_bytes

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Memory of the device, mapped in this process."""

    address: int
    fd: int
    """Stands for it; its owner closes it."""


class DeviceDriver(Protocol):
    """What is asked of one device: `cuda_driver`'s, or a test's."""

    kind: DeviceKind
    """Of its memory."""

    def enter_thread(self) -> None:
        """Let the calling thread use the device."""
        ...

    def allocate(self, num_bytes: int) -> Allocation:
        """New memory of the device, with whatever was in it before.

        Raises:
            OutOfDeviceMemory: there is not so much left.
            DriverError: it is not to be had, or not to be shared with other processes.
        """
        ...

    def tensor(self, address: int, num_bytes: int) -> "Tensor":
        """Memory of `allocate` as bytes, `[num_bytes]` uint8."""
        ...

    def zero(self, bytes_B: "Tensor") -> None:
        """Fill with zeros; returns when they are there."""
        ...

    def map(self, fd: int, num_bytes: int) -> int:
        """Map memory of this or another device of the host; its address.

        Raises:
            DriverError: it cannot be reached from this device.
        """
        ...

    def unmap(self, address: int, num_bytes: int) -> None:
        """The opposite of `map`."""
        ...

    def copy(self, copies: Sequence[Copy]) -> Landing:
        """Enqueue copies on the stream that all copies of this driver share."""
        ...


class DeviceTarget(Target):
    """A peer's memory, mapped into this rank's device."""

    def __init__(self, driver: DeviceDriver, address: int, num_bytes: int) -> None:
        super().__init__(address, num_bytes)
        self._driver = driver
        self._released = False

    @override
    def release(self) -> None:
        if not self._released:
            self._released = True
            self._driver.enter_thread()
            self._driver.unmap(self.address, self.num_bytes)


class DeviceCopies(Copies):
    """The `Copies` of an arena on a device."""

    def __init__(self, driver: DeviceDriver) -> None:
        self._driver = driver

    @override
    def enter_thread(self) -> None:
        self._driver.enter_thread()

    @override
    def attach(self, offer: Offer) -> DeviceTarget:
        kind = self._driver.kind
        check_kind(offer, kind.name)
        try:
            self._driver.enter_thread()
            address = self._driver.map(offer.fd, offer.num_bytes)
        except DriverError as error:
            raise Unavailable(
                f"the peer's GPU memory cannot be mapped: {error}; its GPU must be one that ours can reach "
                f"({kind.look_at_links})"
            ) from error
        return DeviceTarget(self._driver, address, offer.num_bytes)

    @override
    def start(self, copies: Sequence[Copy]) -> Landing:
        return self._driver.copy(copies)


class DeviceMemory(Memory):
    """`num_bytes` of zeros on a device.

    Args:
        num_bytes: at least 1.
        driver: of the device.

    Raises:
        ConfigError: the device has not that much memory left, or none that its driver lets others map.
    """

    def __init__(self, num_bytes: int, driver: DeviceDriver) -> None:
        if num_bytes <= 0:
            raise ConfigError(f"an arena needs at least one byte, got {num_bytes}")
        self._driver = driver
        self._fd = -1
        allocation = self._allocated(num_bytes)
        super().__init__(allocation.address, num_bytes)
        self._fd = allocation.fd
        try:
            self._bytes_B = driver.tensor(self.address, num_bytes)
            # Before anybody hears of it: zeros that come later would overwrite what a peer has written.
            driver.zero(self._bytes_B)
        except BaseException:
            self.close()
            raise

    def _allocated(self, num_bytes: int) -> Allocation:
        size = format_bytes(num_bytes)
        try:
            self._driver.enter_thread()
            return self._driver.allocate(num_bytes)
        except OutOfDeviceMemory as error:
            raise ConfigError(
                f"cannot take an arena of {size} on the GPU: {error}; give the group less "
                "(--kv-bytes, --memory-fraction), or another GPU (--gpus)"
            ) from error
        except DriverError as error:
            raise ConfigError(
                f"the GPU's driver gives no arena of {size} that other processes could map: {error}; check "
                f"its version and the container's rights ({self._driver.kind.look}), or use --device cpu"
            ) from error

    @property
    @override
    def bytes_B(self) -> "Tensor":
        return self._bytes_B

    @override
    def offer(self) -> Offer:
        return Offer(kind=self._driver.kind.name, num_bytes=self.num_bytes, fd=os.dup(self._fd))

    @override
    def copies(self) -> DeviceCopies:
        return DeviceCopies(self._driver)

    @override
    def enter_thread(self) -> None:
        self._driver.enter_thread()

    @override
    def touch(self) -> None:
        """A device's memory is backed from the start."""

    @override
    def close(self) -> None:
        """As in `Memory`; the memory itself goes with the process, whose tensors and graphs may use it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
