"""Answers under way and their ends: late ones, cut ones, and those whose client does not read."""

import asyncio
import json
import logging
import socket
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from services.router.config import RouterConfig
from services.router.drain import AnswersCut
from services.router.fake_backend import FakeBackend
from services.router.main import Ports, serve
from services.router.running import RunningAnswers
from splash_core.errors import DeadlineExceeded, Unavailable
from tests.support.scripted_router import letters, write_tokenizer

WITHIN_S = 60
NUM_CHOICES, NUM_TOKENS = 128, 900


async def endless(answers: RunningAnswers, limit_s: float | None = None) -> None:
    async with answers.within(limit_s):
        await asyncio.Event().wait()


def test_a_cut_ends_what_runs_and_what_begins_later_with_its_cause() -> None:
    async def main() -> None:
        answers = RunningAnswers()
        running = [asyncio.create_task(endless(answers)) for _ in range(2)]
        async with answers.within(None):
            pass  # has ended before, and is not counted
        await asyncio.sleep(0)
        answers.cut("stops")
        assert [str(error) for error in await asyncio.gather(*running, return_exceptions=True)] == [
            "stops"
        ] * 2
        with pytest.raises(Unavailable, match="stops"):
            await endless(answers)
        assert answers.num_cut == 3

    asyncio.run(main())


def test_late_answers_and_timeouts_of_their_own_are_told_apart() -> None:
    async def main() -> None:
        answers = RunningAnswers()
        with pytest.raises(DeadlineExceeded, match="longer than 0 s"):
            await endless(answers, 0.01)
        with pytest.raises(TimeoutError, match="own"):
            async with answers.within(WITHIN_S):
                raise TimeoutError("own")
        assert answers.num_cut == 0

    asyncio.run(main())


async def ask_without_reading(port: int) -> socket.socket:
    """Ask for more than buffers hold."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    body = json.dumps(
        {
            "model": "m",
            "prompt": "x",
            "stream": True,
            "max_tokens": NUM_TOKENS,
            "n": NUM_CHOICES,
            "ignore_eos": True,
        }
    )
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    await loop.sock_sendall(client, (head + body).encode())
    assert (await loop.sock_recv(client, 12)) == b"HTTP/1.1 200"
    return client


async def until_stuck(port: int) -> None:
    """Return when buffers are full: no token is taken any more, and not all were."""
    async with httpx.AsyncClient() as http:
        before = ""
        while (tokens := await generated(http, port)) != before:
            before = tokens
            await asyncio.sleep(0.5)
    assert 0 < float(before) < NUM_CHOICES * NUM_TOKENS


async def generated(http: httpx.AsyncClient, port: int) -> str:
    page = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("splash_generated_tokens_total")]
    return lines[0].split()[-1] if lines else "0"


def test_a_client_that_does_not_read_keeps_no_router_from_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tokenizer(tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    async def main() -> None:
        backend = FakeBackend(letters(tokenizer), vocab=tokenizer.get_vocab_size())
        await backend.start()
        prefill, decode = ((backend.addresses[phase],) for phase in ("prefill", "decode"))
        config = RouterConfig(
            model=folder,
            prefill=prefill,
            decode=decode,
            port=0,
            admin_port=0,
            drain_hold_s=0.0,
            drain_timeout_s=0.2,
        )
        stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(config, stop=stop, on_start=started.set_result))
        ports: Ports = await started
        async with httpx.AsyncClient() as http:
            while (await http.get(f"http://127.0.0.1:{ports.port}/ready")).status_code != 200:
                await asyncio.sleep(0.01)
        client = await ask_without_reading(ports.port)
        await until_stuck(ports.port)
        stop.set()
        try:
            with pytest.raises(AnswersCut, match=r"1 answer was cut after 0\.2 s; raise --drain-timeout-s"):
                await asyncio.wait_for(serving, WITHIN_S)
        finally:
            client.close()
            await backend.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "1 answer was cut" in caplog.text
    assert "ASGI" not in caplog.text
