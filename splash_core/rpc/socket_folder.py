"""A folder for Unix sockets: their paths end at 107 bytes, and a run's own folder may be too deep for them.

Whoever made a folder holds a lock on it (`flock` of the folder itself) for as long as it lives: the system
drops it with the process, and it is seen by all that share the disk, whichever processes they can see.
Invariant: a folder that is made here is gone when it is closed, and those of processes that were killed are
gone with the next one that is made; nobody else removes one whose maker lives.
"""

import fcntl
import os
import re
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "splash-sockets-"
_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{8}}")


class SocketFolder:
    """`wanted`, or a short one under the temporary folder; nothing is made before `open`."""

    def __init__(self, wanted: Path, *, most: int) -> None:
        """`most` bytes may be in its path; the sockets' own names need the rest."""
        self._own = len(os.fsencode(wanted)) > most
        name = f"{_PREFIX}{secrets.token_hex(4)}"
        self.path = Path(tempfile.gettempdir()) / name if self._own else wanted
        self._lock: int | None = None

    def open(self) -> None:
        """Make it; only its user may enter."""
        if not self._own:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            return
        _sweep(self.path.parent)
        made = False
        while not made:
            self.path.mkdir(parents=True, mode=0o700)
            made = self._hold()

    def close(self) -> None:
        """Remove it, if it was made for sockets alone."""
        if self._own:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _hold(self) -> bool:
        """Lock it; False if another process has swept it away before."""
        try:
            self._lock = _locked(self.path, fcntl.LOCK_EX)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # a disk without such locks: nobody sweeps there
        return True


def _sweep(base: Path) -> None:
    """Remove what processes of ours that were killed have left there."""
    for path in base.glob(f"{_PREFIX}*"):
        # Others sweep at the same time, and what lives is locked: there is nothing to remove then.
        with suppress(OSError):
            if _NAME.fullmatch(path.name) and path.lstat().st_uid == os.getuid():
                lock = _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: Path, how: int) -> int:
    """A descriptor that holds the lock of the folder that is there.

    Raises:
        FileNotFoundError: it is gone, or another one took its place, by the time it is locked.
        BlockingIOError: `how` says not to wait, and another process has it.
    """
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, how)
        if not os.path.samestat(os.fstat(lock), path.lstat()):
            raise FileNotFoundError(f"{path} was replaced")
    except OSError:
        os.close(lock)
        raise
    return lock
