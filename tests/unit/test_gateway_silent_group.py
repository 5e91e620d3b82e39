"""A group that does not answer is named with its remedy wherever it is met, and hides no other one."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.openai_conformance import error_of
from tests.support.scripted_router import RunningRouter, running_router, write_tokenizer

BODY = {"model": "test-model", "prompt": "x", "stream": True, "max_tokens": 500}


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RunningRouter]:
    with running_router(write_tokenizer(tmp_path / "m"), policy="auto") as running:
        until(f"{running.url}/ready", 200)
        yield running


def until(url: str, status: int) -> httpx.Response:
    end = time.monotonic() + 20
    while (answer := httpx.get(url)).status_code != status:
        assert time.monotonic() < end, answer.text
        time.sleep(0.01)
    return answer


def end_decode(router: RunningRouter) -> str:
    """End the decode group; returns what is said of it."""
    address = router.backend.addresses["decode"]
    asyncio.run_coroutine_threadsafe(router.backend.stop("decode"), router.loop).result(10)
    return f"group decode-0 ({address}) does not answer: see its log, restart it at the same address"


def test_it_is_named_with_the_remedy(router: RunningRouter) -> None:
    told = end_decode(router)
    found = error_of(until(f"{router.url}/ready", 503), 503)
    assert found["message"] == f"no worker can serve now: {told}"
    order = httpx.post(f"{router.admin_url}/admin/layout", json={"phase": "decode", "layout": "TP"})
    assert error_of(order, 503)["message"] == told
    cluster = httpx.get(f"{router.admin_url}/admin/cluster").json()["groups"]
    assert [group["cause"] for group in cluster] == [None, told]


def test_a_stream_that_it_breaks_names_it(router: RunningRouter) -> None:
    router.backend.faults.token_delay_s = 0.02
    with httpx.stream("POST", f"{router.url}/v1/completions", json=BODY, timeout=30) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert "choices" in next(lines)
        told = end_decode(router)
        *_, last = lines
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == told


def test_an_audit_shows_the_groups_that_answer_and_lists_it(router: RunningRouter) -> None:
    told = end_decode(router)
    report = httpx.get(f"{router.admin_url}/admin/audit").json()
    assert [(group["group"], group["pages_held"]) for group in report["groups"]] == [("prefill-0", 0)]
    assert report["not_asked"] == [{"group": "decode-0", "phase": "decode", "cause": told}]
    assert report["pages_held"] is report["borrowed_pages_used"] is None


def test_which_policy_it_decides_by_is_not_known(router: RunningRouter) -> None:
    told = end_decode(router)
    until(f"{router.url}/ready", 503)
    groups = httpx.get(f"{router.admin_url}/admin/policy").json()["groups"]
    assert [group["version"] for group in groups] == [1, None]
    assert groups[1]["trouble"] == told
