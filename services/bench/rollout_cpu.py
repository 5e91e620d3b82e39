"""Who used the host's cores during an arm: ranks, leaders, router, client, and everybody else.

Invariant: nothing here decides anything; it says why an arm took longer than its steps, or was disturbed.
"""

import time
from collections.abc import Mapping

import psutil


class CpuUse:
    """Seconds of CPU by role, since the last look.

    Args:
        pids: of a stack's services, by name.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = list[tuple[str, psutil.Process]]()
        for name, pid in pids.items():
            service = psutil.Process(pid)
            self._processes.append((name, service))
            self._processes += [(f"{name} ranks", child) for child in service.children(recursive=True)]
        self._before, self._busy = self._now(), _busy_s()

    def since(self) -> dict[str, float]:
        """By role; `others` is what the host was busy for beside them."""
        before, busy = self._before, self._busy
        self._before, self._busy = self._now(), _busy_s()
        used = {name: seconds - before[name] for name, seconds in self._before.items()}
        others = max(self._busy - busy - sum(used.values()), 0.0)
        return {name: round(seconds, 2) for name, seconds in (used | {"others": others}).items()}

    def _now(self) -> dict[str, float]:
        seconds: dict[str, float] = {"client": time.process_time()}
        for name, process in self._processes:
            times = process.cpu_times()
            seconds[name] = seconds.get(name, 0.0) + times.user + times.system
        return seconds


def _busy_s() -> float:
    """Of all cores; what a hypervisor took counts, as nobody here could use it."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
