"""One folder a run, for logs and sockets; the newest ones are kept.

Invariant: only the runs' own folders under the state home are ever deleted, and none whose process lives.
"""

import os
import re
import shutil
import time
from pathlib import Path

from splash_core.environment import state_home
from splash_core.errors import ConfigError

KEPT = 50
"""Folders of runs that have ended; older ones make room for a new one."""
_NAME = re.compile(r"\d{8}-\d{6}-(?P<pid>\d+)(-\d+)?")


def run_folder(given: str) -> Path:
    """The folder that `--run-dir` names, made if need be; a new one without a name.

    Raises:
        ConfigError: it cannot be made or written.
    """
    path = Path(given) if given else state_home()
    try:
        if not given:
            return _new_run_folder(path)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unusable(path, "it may not be written")
    return path


def _unusable(path: Path, cause: str) -> ConfigError:
    return ConfigError(
        f"a run cannot log to {path} ({cause}); set --run-dir (or XDG_STATE_HOME, under which runs get "
        "folders of their own) to a folder that you may write"
    )


def _new_run_folder(base: Path) -> Path:
    """A new folder that only its user may enter."""
    base.mkdir(parents=True, exist_ok=True)
    prune(base, keep=KEPT - 1)
    path = base / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    attempt = 0
    while True:
        candidate = path if attempt == 0 else path.with_name(f"{path.name}-{attempt}")
        try:
            candidate.mkdir(mode=0o700)
        except FileExistsError:
            attempt += 1
        else:
            return candidate


def prune(base: Path, *, keep: int) -> None:
    """Delete the folders of all ended runs under `base` but the newest `keep`."""
    ended = [path for path in base.iterdir() if path.is_dir() and _has_ended(path.name)]
    for path in sorted(ended, key=lambda path: path.name)[: max(0, len(ended) - keep)]:
        shutil.rmtree(path, ignore_errors=True)


def _has_ended(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and not Path(f"/proc/{match['pid']}").exists()
