"""Tells whether a peer process has ended, at once and without being fooled by a reused pid.

A pidfd is used where the kernel and the container allow it, else signal 0. Invariant: `ended` never blocks.
"""

import os
import select


class ProcessWatch:
    """Watches process `pid` until closed. A zombie counts as ended (signal 0 cannot tell, a pidfd can)."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fd: int | None = None
        self._gone = False
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone = True
        except OSError:
            self._fd = None

    def ended(self) -> bool:
        """True once the process has exited."""
        if self._gone:
            return True
        if self._fd is not None:
            self._gone = bool(select.select([self._fd], [], [], 0)[0])
            return self._gone
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            self._gone = True
        except PermissionError:
            return False
        return self._gone

    def close(self) -> None:
        """Stop watching."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
