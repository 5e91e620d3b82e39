"""What this process may use of its host, container limits included, and what others call that host.

A container's cgroup allows less than the host has; sizing by the host gets the container killed.
"""

import os
import socket
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
_ANY = ("0.0.0.0", "::", "[::]")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Cores that this process may keep busy, at least 1: its affinity, and the cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def free_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that this process may still use: the host's available memory, and what the cgroup leaves."""
    free = psutil.virtual_memory().available
    limit, used = _read(cgroup / "memory.max"), _read(cgroup / "memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used)))
    return free


def memory_limit(cgroup: Path = CGROUP) -> int:
    """Bytes that this process may use when nothing else does: the host's memory, or the cgroup's limit."""
    total, limit = psutil.virtual_memory().total, _read(cgroup / "memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def threads_per_rank(ranks_on_host: int, cgroup: Path = CGROUP) -> int:
    """Threads of one rank: the usable cores shared among all ranks of the host, at least 1."""
    return max(1, usable_cores(cgroup) // max(1, ranks_on_host))


def reachable_host(listening: str) -> str:
    """What to tell others of a server that listens at host `listening`: this host's name for "any address".

    A host without a name that resolves is told as its loopback, which serves groups beside this one.
    """
    if listening not in _ANY:
        return listening
    for name in (socket.getfqdn(), socket.gethostname()):
        if name.startswith("localhost"):
            continue
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            continue
        return name
    return "127.0.0.1"


def _read(path: Path) -> str:
    """A cgroup file's text, empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
