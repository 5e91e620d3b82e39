"""CUDA's driver library: what is called of it, with every status looked at.

The driver and not its runtime: the library is wherever a GPU works, in one version, with interfaces that do
not change, and it needs no torch. Invariant: a call that does not succeed raises, and names itself.
"""

import ctypes
from typing import Any

from splash_core.errors import ConfigError
from splash_core.transport.driver_errors import DriverError, OutOfDeviceMemory
from splash_core.transport.kinds import CUDA

U64, SIZE, PTR, INT, UINT = (
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint,
)
_OUT_OF_MEMORY = 2


class Location(ctypes.Structure):
    """`CUmemLocation`."""

    _fields_ = [("type", INT), ("id", INT)]


class AllocationProp(ctypes.Structure):
    """`CUmemAllocationProp`; what is not set here stays 0."""

    _fields_ = [
        ("type", INT),
        ("handle_types", INT),
        ("location", Location),
        ("win32_meta_data", PTR),
        ("flags", ctypes.c_ubyte * 8),
    ]


class AccessDesc(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = [("location", Location), ("flags", INT)]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (UINT,),
    "cuGetErrorName": (INT, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGetCount": (ctypes.POINTER(INT),),
    "cuDeviceGet": (ctypes.POINTER(INT), INT),
    "cuDeviceGetAttribute": (ctypes.POINTER(INT), INT, INT),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(PTR), INT),
    "cuCtxSetCurrent": (PTR,),
    "cuMemGetAllocationGranularity": (ctypes.POINTER(SIZE), ctypes.POINTER(AllocationProp), INT),
    "cuMemCreate": (ctypes.POINTER(U64), SIZE, ctypes.POINTER(AllocationProp), U64),
    "cuMemExportToShareableHandle": (ctypes.POINTER(INT), U64, INT, U64),
    "cuMemImportFromShareableHandle": (ctypes.POINTER(U64), PTR, INT),
    "cuMemAddressReserve": (ctypes.POINTER(U64), SIZE, SIZE, U64, U64),
    "cuMemAddressFree": (U64, SIZE),
    "cuMemMap": (U64, SIZE, SIZE, U64, U64),
    "cuMemUnmap": (U64, SIZE),
    "cuMemSetAccess": (U64, SIZE, ctypes.POINTER(AccessDesc), SIZE),
    "cuMemRelease": (U64,),
    "cuMemcpyDtoDAsync_v2": (U64, U64, SIZE, PTR),
    "cuStreamCreate": (ctypes.POINTER(PTR), UINT),
    "cuEventCreate": (ctypes.POINTER(PTR), UINT),
    "cuEventRecord": (PTR, PTR),
    "cuEventQuery": (PTR,),
    "cuEventDestroy_v2": (PTR,),
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
            self._functions[call].restype = INT

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


def count_gpus(library: CudaLibrary | None = None) -> int:
    """How many GPUs this process may use, as torch counts them; none is taken.

    Raises:
        ConfigError: there is no driver, or it finds no GPU.
    """
    cuda, count = library or CudaLibrary(), INT()
    try:
        cuda.call("cuInit", 0)
        cuda.call("cuDeviceGetCount", ctypes.byref(count))
    except DriverError as error:
        raise ConfigError(
            f"--device {CUDA.device}: the driver finds no GPU ({error}); check {CUDA.look} and "
            "CUDA_VISIBLE_DEVICES, or use --device cpu"
        ) from error
    return count.value
