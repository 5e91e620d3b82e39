"""A rank's process as its leader sees it: what starts it, and what its end means."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

from splash_core.ids import RankId

RankCommand = Callable[[RankId, Path], list[str]]


def rank_command(rank: RankId, config: Path) -> list[str]:
    """Starts a rank on this host; the parent is added."""
    module = "splash_core.engine.rank_process"
    return [sys.executable, "-m", module, "--config", str(config), "--rank", str(rank)]


def exit_text(code: int) -> str:
    """An exit code in words: `was killed by SIGKILL`, `exited with code 1`."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
