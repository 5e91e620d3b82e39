"""Sleeping on a word of shared memory: the kernel's futex, called through ctypes.

Why: a rank that polls a flag takes the core from the rank it waits for when ranks outnumber cores, and
`sched_yield` makes it wait its turn behind unrelated load. A futex sleeps until the very store it needs.
Invariant: the word is 4-byte aligned and lies in memory that all parties map as shared.
"""

import ctypes
import errno
import os

from splash_core.errors import ConfigError

SUPPORTED_MACHINE = "x86_64"
"""System call numbers and memory order below are this machine's."""

_SYS_FUTEX = 202
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_ALL_WAITERS = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class Futex:
    """Wait and wake on words by address. Both calls let other threads of the process run."""

    def __init__(self) -> None:
        machine = os.uname().machine
        if machine != SUPPORTED_MACHINE:
            raise ConfigError(
                f"shared-memory collectives need {SUPPORTED_MACHINE}, this is {machine}; use gloo"
            )
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._syscall.argtypes = (
            ctypes.c_long,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint32,
        )

    def wait(self, address: int, seen: int, timeout_s: float) -> None:
        """Sleep while the 32-bit word at `address` equals `seen`, at most `timeout_s`; may return early."""
        limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
        if self._syscall(_SYS_FUTEX, address, _FUTEX_WAIT, seen, ctypes.addressof(limit), None, 0) < 0:
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR):
                raise OSError(code, f"futex wait: {os.strerror(code)}")

    def wake(self, address: int) -> None:
        """Wake whoever sleeps on the word at `address`."""
        self._syscall(_SYS_FUTEX, address, _FUTEX_WAKE, _ALL_WAITERS, None, None, 0)
