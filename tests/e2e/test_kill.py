"""kill -9 of any process under load: every call ends soon and truthfully, up says why, nothing stays."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

pytestmark = pytest.mark.e2e

MAX_TOKENS = 1500
STEP_S = 0.01
ENDS_WITHIN_S = 10.0
VICTIMS = ("prefill rank", "decode rank", "prefill leader", "decode leader", "router", "up")


class Up:
    """`splash up` on fake engines, as a user would run it."""

    def __init__(self, model: Path, folder: Path, *flags: str) -> None:
        self._err = folder / "up.err"
        run_dir = folder / "run"
        command = [sys.executable, "-m", "services", "up", "--json", "--model", str(model)]
        command += ["--engine", "fake", "--fake-step-s", str(STEP_S), "--run-dir", str(run_dir)]
        command += ["--port", "0", "--admin-port", "0", "--page-size", "8", "--kv-bytes", "16M"]
        command += ["--policy", "off", "--drain-timeout-s", "2", *flags]
        with self._err.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(timeout=30)
            self.process.stdout.close()
            raise AssertionError(self.errors)
        ready = json.loads(line)
        self.url: str = ready["url"]
        self.pids: dict[str, int] = ready["pids"]
        self.everybody = [psutil.Process(self.process.pid)]
        self.everybody += self.everybody[0].children(recursive=True)

    @property
    def errors(self) -> str:
        return self._err.read_text()

    def victim(self, name: str) -> psutil.Process:
        who, _, part = name.partition(" ")
        if who == "up":
            return self.everybody[0]
        process = psutil.Process(self.pids["router" if who == "router" else f"{who}-0"])
        return process.children()[-1] if part == "rank" else process

    def close(self) -> None:
        for process in self.everybody:
            if process.is_running():
                process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def left(self, *, within_s: float) -> list[psutil.Process]:
        """Processes of the run that are still there."""
        self.process.poll()
        _, alive = psutil.wait_procs(
            [process for process in self.everybody[1:] if process.is_running()], timeout=within_s
        )
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


async def _stream(url: str, tokens: int) -> str:
    """One streamed completion: `finished`, or how it failed; fails on a fake finish."""
    body = {"model": "tiny", "prompt": [5] * 30, "max_tokens": tokens, "temperature": 0, "stream": True}
    body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
    finish, usage = None, None
    try:
        async with (
            httpx.AsyncClient(timeout=30) as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            if response.status_code != 200:
                return f"status {response.status_code}"
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    assert finish is None
                    return f"error event: {chunk['error']['message']}"
                for choice in chunk["choices"]:
                    finish = choice["finish_reason"] or finish
                usage = chunk.get("usage") or usage
    except httpx.HTTPError as error:
        return f"connection: {type(error).__name__}"
    assert finish == "length"
    assert usage is not None
    assert usage["completion_tokens"] == tokens
    return "finished"


async def _keep_asking(url: str) -> str:
    """Short requests one after another, until one fails."""
    while True:
        outcome = await _stream(url, 3)
        if outcome != "finished":
            return outcome


async def _load_and_kill(up: Up, victim: str) -> list[str]:
    clients = [asyncio.create_task(_stream(up.url, MAX_TOKENS)) for _ in range(5)]
    clients += [asyncio.create_task(_keep_asking(up.url)) for _ in range(2)]
    await asyncio.sleep(1.0)
    assert not any(client.done() for client in clients), [c.result() for c in clients if c.done()]
    up.victim(victim).send_signal(signal.SIGKILL)
    _, late = await asyncio.wait(clients, timeout=ENDS_WITHIN_S)
    assert not late, f"{len(late)} calls still hang"
    return [client.result() for client in clients]


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_ends_everything_in_time_with_its_cause(
    transport: str, victim: str, tmp_path: Path, tiny_v3: Path
) -> None:
    up = Up(tiny_v3, tmp_path, "--served-model-name", "tiny", "--transport", transport)
    try:
        outcomes = asyncio.run(_load_and_kill(up, victim))
        assert all(outcome != "finished" for outcome in outcomes[-2:])
        code = up.process.wait(timeout=20)
        assert up.left(within_s=5) == []
        if victim == "up":
            assert code == -signal.SIGKILL
            return
        assert code == 1
        assert "SIGKILL" in up.errors
        assert victim.split()[0] in up.errors
        if victim.endswith("rank"):
            assert "rank 1" in up.errors
    finally:
        up.close()


def test_a_rank_that_hangs_ends_its_group_at_the_step_deadline(
    transport: str, tmp_path: Path, tiny_v3: Path
) -> None:
    flags = ["--step-timeout-s", "1.5", "--transport", transport]
    up = Up(tiny_v3, tmp_path, "--served-model-name", "tiny", *flags)
    try:
        rank = up.victim("decode rank")

        async def scenario() -> str:
            client = asyncio.create_task(_stream(up.url, MAX_TOKENS))
            await asyncio.sleep(1.0)
            rank.send_signal(signal.SIGSTOP)
            return await asyncio.wait_for(client, ENDS_WITHIN_S)

        assert asyncio.run(scenario()) != "finished"
        assert up.process.wait(timeout=20) == 1
        assert "rank 1 did not finish step" in up.errors
        assert up.left(within_s=5) == []
    finally:
        up.close()


def test_ctrl_c_drains_and_exits_zero(transport: str, tmp_path: Path, tiny_v3: Path) -> None:
    flags = ["--drain-timeout-s", "20", "--transport", transport]
    up = Up(tiny_v3, tmp_path, "--served-model-name", "tiny", *flags)
    try:

        async def scenario() -> str:
            client = asyncio.create_task(_stream(up.url, 150))
            await asyncio.sleep(0.5)
            up.process.send_signal(signal.SIGINT)
            return await client

        assert asyncio.run(scenario()) == "finished"
        assert up.process.wait(timeout=30) == 0
        assert up.left(within_s=1) == []
    finally:
        up.close()


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path, tiny_v3: Path) -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "services", "up", "--model", str(tiny_v3), "--engine", "fake"]
    command += ["--run-dir", str(tmp_path / "run"), "--port", "0", "--admin-port", "0"]
    done = subprocess.run(
        [*command, "--kv-bytes", "100"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (1, 3)
    assert "--kv-bytes 100 holds no page" in done.stderr
    assert time.monotonic() - began < 60
