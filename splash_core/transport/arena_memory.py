"""The memory of a rank's arena on CPU: an anonymous file that other processes can map.

Why a memfd: it has no name to leak after a kill, it counts as the process's own memory, and containers'
small /dev/shm does not limit it. Invariant: the tensor and every peer's mapping are the same pages.
"""

import ctypes
import errno
import mmap
import os
from typing import TYPE_CHECKING

from typing_extensions import override

from splash_core.dist.fd_passing import anonymous_file
from splash_core.errors import ConfigError
from splash_core.transport.host_copies import HostCopies
from splash_core.transport.kinds import HOST
from splash_core.transport.memory import Memory, Offer
from splash_core.units import format_bytes

if TYPE_CHECKING:
    from torch import Tensor


_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE of Linux 5.14; Python's mmap has no name for it yet."""


class ArenaMemory(Memory):
    """`num_bytes` of zeros, as a byte tensor here and as a file descriptor for peers.

    Torch is imported only when the tensor is asked for: ranks without weights start without it.
    """

    def __init__(self, num_bytes: int) -> None:
        if num_bytes <= 0:
            raise ConfigError(f"an arena needs at least one byte, got {num_bytes}")
        self.fd = -1
        try:
            self.fd = anonymous_file("splash-arena", num_bytes)
            memory = mmap.mmap(self.fd, num_bytes)
        except OSError as error:
            self.close()
            raise ConfigError(
                f"cannot map an arena of {format_bytes(num_bytes)}: {error}; give the group less memory"
            ) from error
        # The anchor keeps the mapping, and so the address, alive as long as this object.
        self._mapping = memory
        self._anchor = ctypes.c_char.from_buffer(memory)
        self._bytes_B: Tensor | None = None
        super().__init__(ctypes.addressof(self._anchor), num_bytes)

    @property
    @override
    def bytes_B(self) -> "Tensor":
        """As in `Memory`; the tensor keeps the mapping alive for as long as any view of it exists."""
        if self._bytes_B is None:
            import torch

            self._bytes_B = torch.frombuffer(self._mapping, dtype=torch.uint8)
        return self._bytes_B

    def write(self, offset: int, data: bytes) -> None:
        """Store bytes; needs no torch."""
        self._mapping[offset : offset + len(data)] = data

    def read(self, offset: int, num_bytes: int) -> bytes:
        """A copy of some bytes; needs no torch."""
        return self._mapping[offset : offset + num_bytes]

    @override
    def offer(self) -> Offer:
        return Offer(kind=HOST.name, num_bytes=self._num_bytes, fd=os.dup(self.fd))

    @override
    def copies(self) -> HostCopies:
        return HostCopies()

    @override
    def enter_thread(self) -> None:
        """Host memory is any thread's."""

    @override
    def touch(self) -> None:
        """Take all pages from the kernel now, so that no writer waits for them later. Changes no byte.

        Raises:
            ConfigError: the host has not that much memory left.
        """
        try:
            self._mapping.madvise(_POPULATE_WRITE)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise ConfigError(
                    f"no memory for an arena of {format_bytes(self._num_bytes)}: {error}; give the group less"
                ) from error
            # A kernel before 5.14 does not know the call.
            for start in range(0, self._num_bytes, mmap.PAGESIZE):
                self._mapping[start] = self._mapping[start]

    @override
    def close(self) -> None:
        """Give up the descriptor; peers that mapped it, and our tensor, keep the memory."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
