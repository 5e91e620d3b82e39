"""A folder for Unix sockets: their paths end at 107 bytes, and a run's own folder may be too deep for them.

Invariant: a folder that is made here is gone when it is closed, and those of processes that were killed are
gone with the next one that is made.
"""

import os
import re
import secrets
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"splash-(\d+)-[0-9a-f]{8}")


class SocketFolder:
    """`wanted`, or a short one under the temporary folder; nothing is made before `open`."""

    def __init__(self, wanted: Path, *, most: int) -> None:
        """`most` bytes may be in its path; the sockets' own names need the rest."""
        self._own = len(os.fsencode(wanted)) > most
        name = f"splash-{os.getpid()}-{secrets.token_hex(4)}"
        self.path = Path(tempfile.gettempdir()) / name if self._own else wanted

    def open(self) -> None:
        """Make it; only its user may enter."""
        if self._own:
            _sweep(self.path.parent)
        self.path.mkdir(parents=True, exist_ok=not self._own, mode=0o700)

    def close(self) -> None:
        """Remove it, if it was made for sockets alone."""
        if self._own:
            shutil.rmtree(self.path, ignore_errors=True)


def _sweep(base: Path) -> None:
    """Remove what processes of ours that were killed have left there."""
    for path in base.glob("splash-*"):
        match = _NAME.fullmatch(path.name)
        if match and not Path(f"/proc/{match[1]}").exists() and path.lstat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
