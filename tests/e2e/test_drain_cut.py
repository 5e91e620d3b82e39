"""Answers that outlive the drain end with an error that says so, whoever stops the router and however."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_kill import Up

pytestmark = pytest.mark.e2e
TOKENS = 1500


@pytest.fixture
def up(tmp_path: Path, tiny_v3: Path) -> Iterator[Up]:
    running = Up(tiny_v3, tmp_path, "--served-model-name", "tiny", "--drain-timeout-s", "1")
    try:
        yield running
    finally:
        running.close()


def body(**fields: object) -> dict[str, object]:
    return {"model": "tiny", "prompt": [5] * 30, "max_tokens": TOKENS, "ignore_eos": True, **fields}


def ended(up: Up, signals: int) -> tuple[list[str], httpx.Response]:
    """The events of a stream and a whole answer that run while the stack is told to stop."""
    url = f"{up.url}/v1/completions"
    with httpx.Client(timeout=60) as http, ThreadPoolExecutor(1) as pool:
        whole = pool.submit(httpx.post, url, json=body(), timeout=60)
        with http.stream("POST", url, json=body(stream=True)) as stream:
            lines = (line for line in stream.iter_lines() if line)
            events = [next(lines)]
            running = httpx.get(f"{up.url}/metrics").text
            while "splash_running_sequences 2" not in running:
                running = httpx.get(f"{up.url}/metrics").text
            up.process.send_signal(signal.SIGINT)
            for _ in range(signals - 1):
                until_unready(up.url)
                up.process.send_signal(signal.SIGINT)
            events += lines
        return events, whole.result()


def until_unready(url: str) -> None:
    while httpx.get(f"{url}/ready").status_code == 200:
        pass


def log_of(up: Up, tmp_path: Path) -> str:
    return (tmp_path / "run" / "router.log").read_text() + (tmp_path / "run" / "router.err").read_text()


@pytest.mark.parametrize(
    ("signals", "cause", "code"),
    [(1, "the answer was cut after 1 s (--drain-timeout-s)", 1), (2, "the router stops at once", 0)],
)
def test_answers_that_outlive_the_drain_end_with_an_error(
    up: Up, tmp_path: Path, signals: int, cause: str, code: int
) -> None:
    events, whole = ended(up, signals)
    last = json.loads(events[-1].removeprefix("data: "))
    assert cause in last["error"]["message"]
    assert last["error"]["code"] == "unavailable"
    assert not any("error" in event for event in events[:-1])
    assert whole.status_code == 503
    assert cause in whole.json()["error"]["message"]
    assert up.process.wait(timeout=30) == code
    assert up.left(within_s=5) == []
    log = log_of(up, tmp_path)
    assert "Exception in ASGI" not in log
    assert "Traceback" not in log
    assert "2 answers were cut" in log
    told = "2 answers were cut after 1 s; raise --drain-timeout-s"
    assert (told in up.errors) == (code == 1)
