"""Services that were told to end leave logs and nothing else: no socket, no rendezvous, no socket folder."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fake_groups import await_ready, start_group

pytestmark = pytest.mark.e2e

WITHIN_S = 60
DEEP = "a-folder-whose-name-leaves-no-room-for-the-names-of-sockets-in-the-107-bytes-of-their-paths"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The services' temporary folder; its path is short, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def left(folder: Path) -> list[str]:
    """All files but logs, settings and output of ranks."""
    kept = {".log", ".err", ".json"}
    return [path.name for path in folder.rglob("*") if not path.is_dir() and path.suffix not in kept]


@pytest.mark.parametrize("engine", ["fake", "torch"])
@pytest.mark.parametrize("deep", ["", DEEP])
def test_groups_leave_no_socket_behind(tiny_v3: Path, temporary: Path, engine: str, deep: str) -> None:
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        run_dir = Path(folder) / deep
        run_dir.mkdir(exist_ok=True)
        flags: dict[str, object] = {"engine": engine, "listen": "", "port": 0}
        children = [
            start_group(phase, tiny_v3, run_dir, name=name, flags=flags)
            for phase, name in (("prefill", "p"), ("decode", "d"))
        ]
        try:
            await_ready(run_dir, *children)
            sockets = [path for base in (run_dir, temporary) for path in base.rglob("*.sock")]
            assert len(sockets) == 2
            for child in children:
                child.terminate()
            for child in children:
                assert child.wait(WITHIN_S)
                assert child.death() is not None
        finally:
            for child in children:
                child.kill()
        assert left(run_dir) == []
    assert list(temporary.glob("splash-*")) == []


@pytest.mark.parametrize("deep", ["", DEEP])
def test_a_stack_leaves_no_socket_behind(tiny_v3: Path, temporary: Path, deep: str) -> None:
    with tempfile.TemporaryDirectory(prefix="r") as folder:
        run_dir = Path(folder) / deep
        command = [sys.executable, "-m", "services", "up", "--json", "--model", str(tiny_v3)]
        command += ["--engine", "fake", "--run-dir", str(run_dir), "--port", "0", "--admin-port", "0"]
        command += ["--page-size", "8", "--kv-bytes", "1M", "--policy", "off", "--drain-timeout-s", "2"]
        up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert up.stdout is not None
        try:
            assert up.stdout.readline(), "it is ready"
            up.send_signal(signal.SIGTERM)
            assert up.wait(WITHIN_S) == 0
        finally:
            with suppress(ProcessLookupError):
                up.kill()
            up.wait()
            up.stdout.close()
        assert left(run_dir) == []
        assert not (run_dir / "sockets").exists()
    assert list(temporary.glob("splash-*")) == []
