"""Folders for sockets: those of the dead are swept away, those of the living never, whoever looks."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from splash_core.rpc import socket_folder
from splash_core.rpc.socket_folder import SocketFolder

DEEP = Path("/" + "x" * 100)
OWNER = f"""
import sys
from pathlib import Path
from splash_core.rpc.socket_folder import SocketFolder
folder = SocketFolder(Path({str(DEEP)!r}), most=80)
folder.open()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, of this process and of its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def owner() -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Another process with a folder of its own, killed in the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        try:
            yield Path(child.stdout.readline().strip()), child
        finally:
            child.kill()


def opened() -> SocketFolder:
    folder = SocketFolder(DEEP, most=80)
    folder.open()
    return folder


def test_a_folder_is_swept_when_its_owner_is_dead_and_not_before(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary / "splash-other").mkdir()
    with owner() as (theirs, child):
        (theirs / "leader.sock").touch()
        # As seen from another container: no such process there, or another one with its number.
        monkeypatch.setattr(Path, "exists", lambda path: False)
        opened().close()
        assert list(theirs.iterdir()) == [theirs / "leader.sock"]
        child.kill()
        child.wait()
        monkeypatch.setattr(Path, "exists", lambda path: True)
        folder = opened()
    assert {path.name for path in temporary.iterdir()} == {"splash-other", folder.path.name}
    folder.close()
    assert [path.name for path in temporary.iterdir()] == ["splash-other"]


def test_a_folder_that_another_process_sweeps_meanwhile_is_no_error(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner() as (gone, child):
        child.kill()
    for left in temporary.iterdir():
        left.rmdir()
    monkeypatch.setattr(Path, "glob", lambda path, pattern: iter([gone]))
    folder = opened()
    assert folder.path.is_dir()
    folder.close()


def test_a_folder_that_is_swept_before_it_is_locked_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tries = fcntl.flock, list[int]()

    def flock(lock: int, how: int) -> None:
        real(lock, how)
        tries.append(how)
        if len(tries) == 1:
            folder.path.rmdir()

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = SocketFolder(DEEP, most=80)
    folder.open()
    assert folder.path.is_dir()
    assert len(tries) == 2
    other = os.open(folder.path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        real(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    folder.close()


def test_a_sweep_removes_only_what_it_has_locked(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner has made it anew, after another sweep, and is about to lock it."""
    with owner() as (path, child):
        child.kill()
    real = fcntl.flock

    def flock(lock: int, how: int) -> None:
        real(lock, how)
        if how & fcntl.LOCK_NB:
            path.rmdir()
            path.mkdir()

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = opened()
    assert set(temporary.iterdir()) == {path, folder.path}
    folder.close()


def test_where_the_disk_knows_no_locks_nothing_is_swept(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owner() as (left, child):
        child.kill()

    def refused(lock: int, how: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(socket_folder.fcntl, "flock", refused)
    folder = opened()
    assert set(temporary.iterdir()) == {left, folder.path}
    folder.close()
    assert list(temporary.iterdir()) == [left]


def test_a_folder_of_the_run_s_own_stays(temporary: Path) -> None:
    near = SocketFolder(temporary / "near", most=4096)
    assert not near.path.exists(), "nothing is made before it is opened"
    near.open()
    near.close()
    assert near.path.is_dir()
