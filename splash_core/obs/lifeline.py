"""Processes that must not outlive their parent.

A child ties itself to its parent at start, so no unsafe code runs between fork and exec; the window before
that is closed by comparing the parent's pid. Invariant: after `die_with_parent`, the kernel kills this
process when its parent ends, in whatever way the parent ends.
"""

import ctypes
import os
import signal
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
    """One process, for ever: a pid alone may be reused, or mean another process in another container."""

    host: str
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> "ProcessRef":
        """The reference of a live process on this host."""
        return cls(host=host_identity(), pid=pid, start_ticks=_start_ticks(pid) or 0)

    def is_gone(self) -> bool:
        """True only with proof: seen from where it ran, none of its threads can run any more."""
        return self.host == host_identity() and not _lives(self.pid, self.start_ticks)


def host_identity() -> str:
    """Equal for processes that see each other: one boot of one host, and the same namespaces.

    Pids mean something inside one pid namespace only, start times inside one time namespace, and the sockets
    over which memory is handed out inside one network namespace.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        # Not Linux: nothing is shared, nothing is proven.
        return f"{os.uname().nodename}/{os.getpid()}"
    spaces = [Path(f"/proc/self/ns/{name}") for name in ("net", "pid", "time")]
    inodes = [str(space.stat().st_ino) if space.exists() else "-" for space in spaces]
    return "/".join((boot.read_text().strip(), *inodes))


def _stat(pid: int) -> list[str] | None:
    """/proc/PID/stat from its third field (the state) on; None if there is no such process to see."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may contain anything; fields count from behind it.
    return stat.rpartition(")")[2].split()


def _start_ticks(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def _lives(pid: int, start_ticks: int) -> bool:
    """May the process that started then still run code? A zombie does, while it has other threads."""
    fields = _stat(pid)
    if fields is None:
        # /proc may hide other users' processes; a signal finds them.
        return _can_be_signalled(pid)
    state, num_threads, started = fields[0], int(fields[17]), int(fields[19])
    if started != start_ticks:
        return False
    return state not in ("Z", "X") or num_threads > 1


def _can_be_signalled(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
