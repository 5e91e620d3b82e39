"""CUDA's driver, as far as an arena needs it: an allocation, its descriptor, copies on a stream.

All calls take addresses as integers. Invariant: each thread makes the rank's own context current first, or
torch would open one on GPU 0 for it.
"""

import ctypes
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from splash_core.errors import ConfigError
from splash_core.transport.cuda_library import (
    INT,
    PTR,
    SIZE,
    U64,
    AccessDesc,
    AllocationProp,
    CudaLibrary,
    Location,
)
from splash_core.transport.device_memory import Allocation, DeviceDriver
from splash_core.transport.driver_errors import DriverError
from splash_core.transport.kinds import CUDA
from splash_core.transport.memory import Copy, Landing

if TYPE_CHECKING:
    from torch import Tensor

_PINNED, _POSIX_FD, _ON_DEVICE, _READ_WRITE = 1, 1, 1, 3
_NON_BLOCKING_STREAM, _NO_TIMING = 1, 2
_NOT_READY = 600
_ABILITIES = {"virtual memory management": 102, "memory as file descriptors": 103}
"""What an arena needs of a GPU and its driver: attributes of the device."""


class CudaDriver(DeviceDriver):
    """The `DeviceDriver` of one GPU.

    Args:
        index: of the GPU, as torch counts them.
        library: the driver's functions.

    Raises:
        ConfigError: there is no such GPU, or it cannot do what arenas need.
    """

    kind = CUDA

    def __init__(self, index: int, library: CudaLibrary | None = None) -> None:
        self._index = index
        self._cuda = library or CudaLibrary()
        self._context, self._stream = PTR(), PTR()
        try:
            self._open(index)
        except DriverError as error:
            raise ConfigError(
                f"GPU {index} cannot be used: {error}; check {CUDA.look}, or name another one (--gpus)"
            ) from error

    def _open(self, index: int) -> None:
        device = INT()
        self._cuda.call("cuInit", 0)
        self._cuda.call("cuDeviceGet", ctypes.byref(device), index)
        self._check_abilities(device)
        # The one that torch uses too; it lasts as long as the process.
        self._cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._prop = AllocationProp(
            type=_PINNED, handle_types=_POSIX_FD, location=Location(_ON_DEVICE, device.value)
        )
        self.enter_thread()
        granularity = SIZE()
        self._cuda.call(
            "cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(self._prop), 0
        )
        self._granularity = granularity.value
        self._cuda.call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING_STREAM)

    def _check_abilities(self, device: ctypes.c_int) -> None:
        for ability, attribute in _ABILITIES.items():
            has = INT()
            self._cuda.call("cuDeviceGetAttribute", ctypes.byref(has), attribute, device)
            if not has.value:
                raise DriverError(f"it has no {ability}, which arenas need")

    @override
    def enter_thread(self) -> None:
        self._cuda.call("cuCtxSetCurrent", self._context)

    @override
    def allocate(self, num_bytes: int) -> Allocation:
        handle, fd = U64(), INT(-1)
        room = self._room(num_bytes)
        self._cuda.call("cuMemCreate", ctypes.byref(handle), room, ctypes.byref(self._prop), 0)
        try:
            self._cuda.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, _POSIX_FD, 0)
            try:
                return Allocation(address=self._mapped(handle, room), fd=fd.value)
            except DriverError:
                os.close(fd.value)
                raise
        finally:
            # The mapping keeps the memory, as every descriptor does.
            self._cuda.call("cuMemRelease", handle)

    @override
    def tensor(self, address: int, num_bytes: int) -> "Tensor":
        import torch

        return torch.as_tensor(_RawBytes(address, num_bytes), device=torch.device("cuda", self._index))

    @override
    def zero(self, bytes_B: "Tensor") -> None:
        import torch

        bytes_B.zero_()
        torch.cuda.synchronize(bytes_B.device)

    @override
    def map(self, fd: int, num_bytes: int) -> int:
        handle = U64()
        self._cuda.call("cuMemImportFromShareableHandle", ctypes.byref(handle), PTR(fd), _POSIX_FD)
        try:
            return self._mapped(handle, self._room(num_bytes))
        finally:
            self._cuda.call("cuMemRelease", handle)

    @override
    def unmap(self, address: int, num_bytes: int) -> None:
        room = self._room(num_bytes)
        self._cuda.call("cuMemUnmap", address, room)
        self._cuda.call("cuMemAddressFree", address, room)

    @override
    def copy(self, copies: Sequence[Copy]) -> "CudaLanding":
        for copy in copies:
            self._cuda.call("cuMemcpyDtoDAsync_v2", copy.target, copy.source, copy.num_bytes, self._stream)
        return CudaLanding(self._cuda, self._stream)

    def _room(self, num_bytes: int) -> int:
        return -(-num_bytes // self._granularity) * self._granularity

    def _mapped(self, handle: ctypes.c_uint64, room: int) -> int:
        """Addresses of this GPU for memory of any, to read and write."""
        address = U64()
        self._cuda.call("cuMemAddressReserve", ctypes.byref(address), room, 0, 0, 0)
        try:
            self._cuda.call("cuMemMap", address, room, 0, handle, 0)
        except DriverError:
            self._cuda.call("cuMemAddressFree", address, room)
            raise
        access = AccessDesc(location=self._prop.location, flags=_READ_WRITE)
        try:
            self._cuda.call("cuMemSetAccess", address, room, ctypes.byref(access), 1)
        except DriverError:
            self.unmap(address.value, room)
            raise
        return address.value


class CudaLanding(Landing):
    """An event behind copies."""

    def __init__(self, cuda: CudaLibrary, stream: ctypes.c_void_p) -> None:
        self._cuda = cuda
        self._event: ctypes.c_void_p | None = PTR()
        cuda.call("cuEventCreate", ctypes.byref(self._event), _NO_TIMING)
        cuda.call("cuEventRecord", self._event, stream)

    @property
    @override
    def over(self) -> bool:
        if self._event is not None:
            status = self._cuda.status("cuEventQuery", self._event)
            if status == _NOT_READY:
                return False
            self._cuda.check("cuEventQuery", status)
            self._cuda.call("cuEventDestroy_v2", self._event)
            self._event = None
        return True


class _RawBytes:
    """Memory of a device in the form in which array libraries hand it on."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
