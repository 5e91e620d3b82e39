"""For how long this process stood ready and had no CPU, by what Linux counts.

Other processes' work on a CPU host is noise in a measurement; this tells which repetitions it disturbed,
without looking at how long they took, and when there is a calm moment.
"""

import time
from pathlib import Path

_SCHEDSTAT = Path("/proc/self/schedstat")
"""Of the main thread: nanoseconds on a CPU, nanoseconds ready without one, turns."""
_PROBE_S = 0.03


def run_delay_s() -> float:
    """Seconds since the process began; 0 where the kernel does not count them."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def busy_share() -> float:
    """The part of a moment of computing in which this process had to wait for a CPU."""
    began, delayed = time.perf_counter(), run_delay_s()
    while time.perf_counter() - began < _PROBE_S:
        pass
    return (run_delay_s() - delayed) / (time.perf_counter() - began)
