"""`splash router` as a process over scripted groups: ports, SIGTERM, a second signal."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from services.router.fake_backend import FakeBackend
from splash_core.leader.fingerprint import checkpoint_fingerprint
from tests.support.scripted_router import letters, write_tokenizer

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    popen: "subprocess.Popen[bytes]"
    url: str
    backend: FakeBackend


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30) as client:
        yield client


@contextlib.contextmanager
def scripted_groups(folder: Path) -> Iterator[FakeBackend]:
    """Scripted groups in a thread of their own."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend = FakeBackend(letters(tokenizer), vocab=tokenizer.get_vocab_size())
    for group in (backend.prefill, backend.decode):
        group.abi.model = checkpoint_fingerprint(folder)
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def main() -> None:
        await backend.start()
        ready.set()
        await stop.wait()
        await backend.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield backend
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    loop.close()


@pytest.fixture
def process(tmp_path: Path, http: httpx.Client) -> Iterator[Process]:
    folder = write_tokenizer(tmp_path / "model")
    port = free_port()
    with scripted_groups(folder) as backend:
        command = [sys.executable, "-m", "services", "router", "--model", str(folder), "--port", str(port)]
        command += ["--admin-port", "0", "--run-dir", str(tmp_path / "run")]
        command += ["--prefill", backend.addresses["prefill"], "--decode", backend.addresses["decode"]]
        popen = subprocess.Popen(command, cwd=ROOT)
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + 60
            while not _ready(http, url):
                assert popen.poll() is None, "the router ended"
                assert time.monotonic() < end, "the router is not ready"
                time.sleep(0.05)
            yield Process(popen=popen, url=url, backend=backend)
        finally:
            popen.kill()
            popen.wait()


def _ready(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/ready").status_code == 200
    except httpx.ConnectError:
        return False


def body(**fields: object) -> dict[str, object]:
    return {"model": "model", "prompt": "x", "stream": True, **fields}


def test_sigterm_turns_unready_first_and_lets_streams_finish(process: Process, http: httpx.Client) -> None:
    process.backend.faults.token_delay_s = 0.02
    with http.stream("POST", f"{process.url}/v1/completions", json=body(max_tokens=150)) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        process.popen.send_signal(signal.SIGTERM)
        end = time.monotonic() + 1
        while _ready(http, process.url):
            assert time.monotonic() < end
        # Unready, but whoever has not noticed yet is still served.
        late = http.post(f"{process.url}/v1/completions", json=body(stream=False, max_tokens=2))
        assert late.status_code == 200
        # Whoever comes later is told why, as long as the stream runs.
        while (
            refused := http.post(f"{process.url}/v1/completions", json=body(stream=False, max_tokens=2))
        ).is_success:
            time.sleep(0.05)
        assert refused.status_code == 503
        assert "draining" in refused.json()["error"]["message"]
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert process.popen.wait(15) == 0
    with pytest.raises(httpx.ConnectError):
        http.get(f"{process.url}/ready")


def test_second_signal_ends_at_once(process: Process, http: httpx.Client) -> None:
    process.backend.faults.token_delay_s = 0.05
    with http.stream("POST", f"{process.url}/v1/completions", json=body(max_tokens=900)) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(5) == 0
        with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
            assert not any(line == "data: [DONE]" for line in lines)
