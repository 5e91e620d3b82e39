"""CUDA's driver library, as far as an arena needs it: an allocation, its descriptor, copies on a stream.

The driver and not its runtime: the library is wherever a GPU works, in one version, with interfaces that do
not change. All calls take addresses as integers. Invariant: every call's status is looked at, and each thread
makes the rank's own context current first, or torch would open one on GPU 0 for it.
"""

import ctypes
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from splash_core.errors import ConfigError
from splash_core.transport.device_memory import Allocation, DeviceDriver, DriverError, OutOfDeviceMemory
from splash_core.transport.kinds import CUDA
from splash_core.transport.memory import Copy, Landing

if TYPE_CHECKING:
    from torch import Tensor

_U64, _SIZE, _PTR, _INT, _UINT = (
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint,
)
_PINNED, _POSIX_FD, _ON_DEVICE, _READ_WRITE = 1, 1, 1, 3
_NON_BLOCKING_STREAM, _NO_TIMING = 1, 2
_OUT_OF_MEMORY, _NOT_READY = 2, 600
_ABILITIES = {"virtual memory management": 102, "memory as file descriptors": 103}
"""What an arena needs of a GPU and its driver: attributes of the device."""


class Location(ctypes.Structure):
    """`CUmemLocation`."""

    _fields_ = [("type", _INT), ("id", _INT)]


class AllocationProp(ctypes.Structure):
    """`CUmemAllocationProp`; what is not set here stays 0."""

    _fields_ = [
        ("type", _INT),
        ("handle_types", _INT),
        ("location", Location),
        ("win32_meta_data", _PTR),
        ("flags", ctypes.c_ubyte * 8),
    ]


class AccessDesc(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = [("location", Location), ("flags", _INT)]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuGetErrorName": (_INT, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGet": (ctypes.POINTER(_INT), _INT),
    "cuDeviceGetAttribute": (ctypes.POINTER(_INT), _INT, _INT),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_PTR), _INT),
    "cuCtxSetCurrent": (_PTR,),
    "cuMemGetAllocationGranularity": (ctypes.POINTER(_SIZE), ctypes.POINTER(AllocationProp), _INT),
    "cuMemCreate": (ctypes.POINTER(_U64), _SIZE, ctypes.POINTER(AllocationProp), _U64),
    "cuMemExportToShareableHandle": (ctypes.POINTER(_INT), _U64, _INT, _U64),
    "cuMemImportFromShareableHandle": (ctypes.POINTER(_U64), _PTR, _INT),
    "cuMemAddressReserve": (ctypes.POINTER(_U64), _SIZE, _SIZE, _U64, _U64),
    "cuMemAddressFree": (_U64, _SIZE),
    "cuMemMap": (_U64, _SIZE, _SIZE, _U64, _U64),
    "cuMemUnmap": (_U64, _SIZE),
    "cuMemSetAccess": (_U64, _SIZE, ctypes.POINTER(AccessDesc), _SIZE),
    "cuMemRelease": (_U64,),
    "cuMemcpyDtoDAsync_v2": (_U64, _U64, _SIZE, _PTR),
    "cuStreamCreate": (ctypes.POINTER(_PTR), _UINT),
    "cuEventCreate": (ctypes.POINTER(_PTR), _UINT),
    "cuEventRecord": (_PTR, _PTR),
    "cuEventQuery": (_PTR,),
    "cuEventDestroy_v2": (_PTR,),
}
"""Argument types of what is called; all of it returns a status."""


class CudaLibrary:
    """The driver's functions, each of which raises unless it succeeds.

    Raises:
        ConfigError: there is no driver, or none that has them all.
    """

    def __init__(self, name: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(name)
            self._functions = {call: getattr(self._library, call) for call in _SIGNATURES}
        except (OSError, AttributeError) as error:
            raise ConfigError(
                f"{name} cannot be used ({error}): --device {CUDA.device} needs {CUDA.needs}, not an "
                f"older one than torch asks for; check {CUDA.look}, or use --device cpu"
            ) from error
        for call, arguments in _SIGNATURES.items():
            self._functions[call].argtypes = arguments
            self._functions[call].restype = _INT

    def status(self, call: str, *arguments: Any) -> int:
        """What a function returns."""
        return self._functions[call](*arguments)

    def call(self, call: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            OutOfDeviceMemory: as `DriverError`, for want of memory.
            DriverError: names the function and the driver's error.
        """
        self.check(call, self.status(call, *arguments))

    def check(self, call: str, status: int) -> None:
        """Raise what `call` raises, unless a function's status is that of success."""
        if status:
            name = ctypes.c_char_p()
            self.status("cuGetErrorName", status, ctypes.byref(name))
            kind = OutOfDeviceMemory if status == _OUT_OF_MEMORY else DriverError
            raise kind(f"{call}: {(name.value or b'unknown error').decode()} ({status})")


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
        self._context, self._stream = _PTR(), _PTR()
        try:
            self._open(index)
        except DriverError as error:
            raise ConfigError(
                f"GPU {index} cannot be used: {error}; check {CUDA.look}, or name another one (--gpus)"
            ) from error

    def _open(self, index: int) -> None:
        device = _INT()
        self._cuda.call("cuInit", 0)
        self._cuda.call("cuDeviceGet", ctypes.byref(device), index)
        self._check_abilities(device)
        # The one that torch uses too; it lasts as long as the process.
        self._cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._prop = AllocationProp(
            type=_PINNED, handle_types=_POSIX_FD, location=Location(_ON_DEVICE, device.value)
        )
        self.enter_thread()
        granularity = _SIZE()
        self._cuda.call(
            "cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(self._prop), 0
        )
        self._granularity = granularity.value
        self._cuda.call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING_STREAM)

    def _check_abilities(self, device: ctypes.c_int) -> None:
        for ability, attribute in _ABILITIES.items():
            has = _INT()
            self._cuda.call("cuDeviceGetAttribute", ctypes.byref(has), attribute, device)
            if not has.value:
                raise DriverError(f"it has no {ability}, which arenas need")

    @override
    def enter_thread(self) -> None:
        self._cuda.call("cuCtxSetCurrent", self._context)

    @override
    def allocate(self, num_bytes: int) -> Allocation:
        handle, fd = _U64(), _INT(-1)
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
        handle = _U64()
        self._cuda.call("cuMemImportFromShareableHandle", ctypes.byref(handle), _PTR(fd), _POSIX_FD)
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
        address = _U64()
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
        self._event: ctypes.c_void_p | None = _PTR()
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
