"""CUDA's driver library without a GPU: every call succeeds, but for those that a test names."""

import os
from typing import Any

from typing_extensions import override

from splash_core.transport.cuda_library import CudaLibrary

GRANULE = 2 << 20
NUM_GPUS = 3
_NAMES = {2: b"CUDA_ERROR_OUT_OF_MEMORY", 101: b"CUDA_ERROR_INVALID_DEVICE", 600: b"CUDA_ERROR_NOT_READY"}
_NUMBER = {
    "cuMemGetAllocationGranularity": GRANULE,
    "cuMemAddressReserve": 0x7000_0000,
    "cuDeviceGetAttribute": 1,
    "cuDeviceGetCount": NUM_GPUS,
}


class ScriptedCuda(CudaLibrary):
    """What is asked of it, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing: dict[str, int] = {}
        """Statuses by function."""
        self.lacking: set[int] = set()
        """Attributes that the device has not."""
        self.fds: list[int] = []
        """Descriptors that it has handed out."""

    @override
    def status(self, call: str, *arguments: Any) -> int:
        self.asked.append(call)
        if call == "cuGetErrorName":
            arguments[1]._obj.value = _NAMES.get(arguments[0], b"CUDA_ERROR_UNKNOWN")
        elif call in self.failing:
            return self.failing[call]
        elif call == "cuMemExportToShareableHandle":
            self.fds.append(os.memfd_create("scripted"))
            arguments[0]._obj.value = self.fds[-1]
        elif call == "cuDeviceGetAttribute" and arguments[1] in self.lacking:
            arguments[0]._obj.value = 0
        elif call in _NUMBER:
            arguments[0]._obj.value = _NUMBER[call]
        return 0


def is_open(fd: int) -> bool:
    """Does this process have that descriptor."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
