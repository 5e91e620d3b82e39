"""What commands write at their end: that they can is known before they begin, and files are replaced whole.

Invariant: a check leaves nothing behind, and what could not be written is refused before any work is done.
"""

import dataclasses
import errno
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from splash_core.errors import ConfigError
from splash_core.settings_base import Output


def check_outputs(settings: object) -> None:
    """Check whatever files and folders a settings object names to be written.

    Raises:
        ConfigError: one cannot be; names the flag.
    """
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        wanted, path = field.metadata.get("writes"), getattr(settings, field.name)
        flag = f"--{field.name.replace('_', '-')}"
        if wanted is Output.FILE and path.endswith("/"):
            raise ConfigError(f"{flag} {path} is a folder; name a file in it")
        if wanted is not None and path:
            check_output(wanted, Path(path), flag=flag)


def check_output(wanted: Output, path: Path, *, flag: str) -> None:
    """Return if it can be written: made anew, or replaced where it is there already.

    Raises:
        ConfigError: it is something else, or may not be written; names the flag.
    """
    try:
        if wanted is Output.FOLDER:
            _check_folder(path)
        elif path.is_dir():
            raise ConfigError(f"{flag} {path} is a folder; name a file in it")
        elif _is_plain(path):
            _check_folder(path.resolve().parent)
        elif not path.is_fifo():
            path.open("ab").close()
        # Whoever reads a pipe would take an end for the end of what is written.
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        cause = error.strerror or error
        raise ConfigError(
            f"{flag} {path} cannot be written ({cause}); name a {wanted} where you may write"
        ) from error


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file anew; a reader, or a kill at any moment, finds the old or the new one.

    Args:
        path: of the file; missing folders are made.
        write: writes the path that it is given.
    """
    if not _is_plain(path):  # a terminal, a pipe: nothing to be replaced
        write(path)
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """As `replace_file`, with a text."""
    replace_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def _is_plain(path: Path) -> bool:
    return path.is_file() or not path.exists()


def _check_folder(folder: Path) -> None:
    """Raise `OSError` unless files could be made in it, or it could be made itself."""
    there = folder.resolve()
    while not there.exists():
        there = there.parent
    # The system is asked by doing it: permissions alone say nothing of a full or read-only disk.
    with tempfile.TemporaryFile(dir=there):
        pass
