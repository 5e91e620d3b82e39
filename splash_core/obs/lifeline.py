"""Processes that must not outlive their parent.

A child ties itself to its parent at start, so no unsafe code runs between fork and exec; the window before
that is closed by comparing the parent's pid. Invariant: after `die_with_parent`, the kernel kills this
process when its parent ends, in whatever way the parent ends.
"""

import ctypes
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, *, death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `death_signal` when the parent ends; exit now if it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        raise SystemExit(f"the parent process {parent_pid} is gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRef:
    """One process of one boot of one host: a pid alone may be reused, its start time may not."""

    host: str
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> "ProcessRef":
        """The reference of a live process on this host."""
        return cls(host=host_identity(), pid=pid, start_ticks=_start_ticks(pid) or 0)

    def is_gone(self) -> bool:
        """True only with proof: same host, and no live process with this pid and start time."""
        return self.host == host_identity() and _start_ticks(self.pid) != self.start_ticks


def host_identity() -> str:
    """This boot of this host."""
    return f"{socket.gethostname()}/{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when the process is gone or a zombie (it runs no code any more)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may contain anything; fields count from behind it.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
