"""Service processes as children: started, watched, ended, and their cause of death told.

Invariant: no child outlives this process. Children tie themselves to it (`--parent-pid`) and live in sessions
of their own, so a Ctrl-C in the terminal reaches only the supervisor, which then ends them in order.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from splash_core.environment import child_environment
from splash_core.obs.logging import last_lines

_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a child ended."""

    name: str
    pid: int
    code: int
    """Exit code; negative: the signal that killed it."""
    log: Path
    lines: tuple[str, ...]

    def __str__(self) -> str:
        how = (
            f"was killed by {signal.Signals(-self.code).name}"
            if self.code < 0
            else f"exited with {self.code}"
        )
        cause = error_of(self.lines)
        return f"{self.name} (pid {self.pid}) {how}{f': {cause}' if cause else ''}"


def error_of(lines: tuple[str, ...]) -> str:
    """The last error message of a log, or its last line; empty when there is neither."""
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("level") in ("ERROR", "CRITICAL"):
            return str(entry["message"])
    plain = [line for line in lines if line.strip() and not line.startswith("{")]
    return plain[-1].strip() if plain else ""


class Child:
    """One service process."""

    def __init__(self, name: str, arguments: list[str], *, run_dir: Path, module: str = "services") -> None:
        """Start `python -m MODULE ARGUMENTS`; output goes to `run_dir/NAME.err`, logs to `NAME.log`."""
        self.name = name
        self.log = run_dir / f"{name}.log"
        self._err = run_dir / f"{name}.err"
        with self._err.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, "--parent-pid", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=child_environment(),
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self._process.poll() is None

    def death(self) -> Death | None:
        """How it ended, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        lines = (*last_lines(self._err, 5), *last_lines(self.log, 20))
        return Death(name=self.name, pid=self.pid, code=code, log=self.log, lines=lines)

    def terminate(self) -> None:
        """Ask it to drain and exit."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float, *, hurry: threading.Event | None = None) -> bool:
        """True when it has ended within the time; stops waiting when `hurry` is set."""
        end = time.monotonic() + timeout_s
        while self.running:
            if time.monotonic() >= end or (hurry is not None and hurry.is_set()):
                return False
            time.sleep(_POLL_S)
        return True

    def kill(self) -> None:
        """End it now; its own children die with it."""
        if self.running:
            self._process.kill()
        self._process.wait()
