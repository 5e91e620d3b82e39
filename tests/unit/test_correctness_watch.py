"""Probes in a router over scripted groups, of which one layout can be made wrong."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.cli import main
from services.router.correctness_prompts import fixed_prompts
from services.router.tokenizer import Tokenizer
from splash_core.pb import common_pb2
from tests.support.scripted_router import SPECIAL, RunningRouter, running_router, write_tokenizer

HOUR = 3600.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


def probes(router: RunningRouter) -> dict[str, Any]:
    return httpx.get(f"{router.admin_url}/admin/canary").json()


def pair_of(router: RunningRouter) -> dict[str, Any]:
    (pair,) = probes(router)["pairs"]
    return pair


def groups(router: RunningRouter) -> dict[str, dict[str, Any]]:
    found = httpx.get(f"{router.admin_url}/admin/cluster").json()["groups"]
    return {group["phase"]: group for group in found}


def metrics(router: RunningRouter, name: str) -> float:
    page = httpx.get(f"{router.url}/metrics").text.splitlines()
    labels = '{decode="decode-0",prefill="prefill-0"}'
    found = [line for line in page if line.startswith(f"splash_probe_{name}{labels} ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def set_layout(router: RunningRouter, layout: str) -> None:
    body = {"phase": "decode", "layout": layout}
    assert httpx.post(f"{router.admin_url}/admin/layout", json=body).status_code == 200


@contextmanager
def watched(folder: Path, **settings: object) -> Iterator[RunningRouter]:
    """A router whose probes have their reference."""
    with running_router(folder, **{"probe_every_s": HOUR, **settings}) as router:
        until(lambda: [pair for pair in probes(router)["pairs"] if pair["reference"]])
        yield router


@contextmanager
def users(router: RunningRouter) -> Iterator[list[str]]:
    """Somebody who asks the same again and again; what the answers were."""
    answers: list[str] = []
    stop = threading.Event()
    body = {"model": "test-model", "prompt": "the cat", "max_tokens": 12, "temperature": 0}

    def ask() -> None:
        while not stop.is_set():
            answer = httpx.post(f"{router.url}/v1/completions", json=body, timeout=30)
            ok = answer.status_code == 200
            answers.append(answer.json()["choices"][0]["text"] if ok else answer.text)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        stop.set()
        thread.join()


def test_a_layout_that_is_wrong_is_left_within_one_check_and_nobody_is_disturbed(folder: Path) -> None:
    with watched(folder) as router:
        set_layout(router, "DOP")
        until(lambda: pair_of(router)["checks"] == 2)
        assert pair_of(router)["last"]["verdict"] == "SAME"
        router.backend.faults.wrong_layouts = frozenset({"TP"})
        with users(router) as answers:
            until(lambda: answers)
            set_layout(router, "TP")
            until(lambda: pair_of(router)["alarm"])
            assert metrics(router, "drifts_total") == 1
            until(lambda: pair_of(router)["last"]["verdict"] == "SAME")
            told = pair_of(router)
            assert (told["checks"], told["drifts"]) == (4, 1)
            decode, prefill = groups(router)["decode"], groups(router)["prefill"]
            assert (decode["layout"], prefill["layout"]) == ("DOP", "TP")
            assert router.backend.decode.pinned == "DOP"
            assert router.backend.prefill.pinned == ""
            assert "answers have changed" in decode["canary_alarm"]
            assert metrics(router, "alarm") == 1
            count = len(answers)
            until(lambda: len(answers) > count + 1)
        # Whoever asked while TP was in force was answered by it; nobody failed, and all others are as ever.
        router.backend.faults.wrong_layouts = frozenset()
        with users(router) as later:
            until(lambda: later)
        wrong = [answer for answer in answers if answer != later[0]]
        assert not [answer for answer in wrong if "error" in answer]
        assert answers[0] == answers[-1] == later[0]
        until(lambda: router.backend.counts.held == 0)


def splash(monkeypatch: pytest.MonkeyPatch, router: RunningRouter, *arguments: str) -> int:
    monkeypatch.setenv("SPLASH_ADMIN", router.admin_url)
    monkeypatch.setattr("sys.argv", ["splash", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_tells_of_alarms_and_resets_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with watched(folder) as router:
        assert splash(monkeypatch, router, "canary", "get") == 0
        assert "reference: prefill-0 in TP (epoch 0), decode-0 in DP (epoch 0)" in capsys.readouterr().out
        router.backend.faults.wrong_layouts = frozenset({"TP"})
        set_layout(router, "TP")
        until(lambda: pair_of(router)["last"]["verdict"] == "SAME" and pair_of(router)["alarm"])
        assert splash(monkeypatch, router, "layout", "get") == 0
        assert ", pinned to DP\n         probes: answers have changed" in capsys.readouterr().out
        assert splash(monkeypatch, router, "canary", "get") == 1
        shown = capsys.readouterr().out
        assert "ALARM: answers have changed (prefill-0 in TP, decode-0 in TP): prompt 0 has token" in shown
        assert "from DP to TP; switched back and held" in shown
        assert splash(monkeypatch, router, "canary", "get", "--json") == 1
        assert json.loads(capsys.readouterr().out)["alarms"] == 1
        assert splash(monkeypatch, router, "canary", "reset") == 0
        assert splash(monkeypatch, router, "canary", "get") == 0
        assert router.backend.decode.pinned == "DP"


def test_an_alarm_tells_what_was_found_and_done_and_ends_with_the_pin(folder: Path) -> None:
    with watched(folder) as router:
        router.backend.faults.wrong_layouts = frozenset({"TP"})
        set_layout(router, "TP")
        until(lambda: pair_of(router)["alarm"])
        until(lambda: pair_of(router)["last"]["verdict"] == "SAME")
        (decision,) = httpx.get(f"{router.admin_url}/admin/decisions?last=100&phase=decode").json()[1:]
        assert (decision["verdict"], decision["from"], decision["to"]) == ("PIN", "TP", "DP")
        assert "in the mean" in decision["reason"]
        (group,) = pair_of(router)["alarm"]["groups"]
        assert (group["group"], group["pinned_to"]) == ("decode-0", "DP")
        assert len(probes(router)["drifts"]) == 1
        httpx.post(f"{router.admin_url}/admin/layout/unpin", json={"phase": "decode"})
        until(lambda: pair_of(router)["alarm"] is None)
        assert metrics(router, "alarm") == 0


def test_a_drift_without_a_switch_holds_everything_where_it_is(folder: Path) -> None:
    with watched(folder, probe_every_s=0.05) as router:
        router.backend.faults.wrong_answers = 1_000_000
        until(lambda: pair_of(router)["drifts"] > 1)
        assert (router.backend.prefill.pinned, router.backend.decode.pinned) == ("TP", "DP")
        assert (router.backend.prefill.layout_epoch, router.backend.decode.layout_epoch) == (0, 0)
        router.backend.faults.wrong_answers = 0
        until(lambda: pair_of(router)["last"]["verdict"] == "SAME")
        assert pair_of(router)["alarm"]
        answer = httpx.post(f"{router.admin_url}/admin/canary/reset").json()
        assert answer["alarms"] == 0
        until(lambda: pair_of(router)["reference"])


def test_one_odd_answer_is_counted_and_is_no_alarm(folder: Path) -> None:
    with watched(folder, probe_every_s=0.05) as router:
        router.backend.faults.wrong_answers = 1
        until(lambda: metrics(router, "odd_total") == 1)
        count = pair_of(router)["checks"]
        until(lambda: pair_of(router)["checks"] > count + 2)
        assert probes(router)["alarms"] == 0
        assert router.backend.decode.pinned == ""


def test_a_group_with_waiting_requests_is_not_asked_and_that_is_said(folder: Path) -> None:
    with running_router(folder, probe_every_s=HOUR, probe_deadline_s=5.0) as router:
        router.backend.decode.waiting = 3
        until(lambda: metrics(router, "skipped_total"))
        until(lambda: pair_of(router)["waits_for"] == "decode-0 is saturated: 3 requests wait")
        router.backend.decode.waiting = 0
        router.backend.decode.kv_tokens_projected = router.backend.decode.kv_tokens_total
        router.backend.counts.decodes_running = 1
        until(lambda: "KV tokens are projected" in (pair_of(router)["waits_for"] or ""))
        assert router.backend.counts.decode_calls == 0
        assert metrics(router, "skipped_total") <= 2
        router.backend.decode.kv_tokens_projected = 0
        until(lambda: pair_of(router)["reference"])
        assert pair_of(router)["waits_for"] is None


@pytest.mark.parametrize("end", ["full", "draining"])
def test_a_check_is_given_up_when_a_group_fills_up_or_drains(folder: Path, end: str) -> None:
    with watched(folder) as router:
        router.backend.faults.hold_prefill = router.call(asyncio.Event)
        set_layout(router, "TP")
        until(lambda: router.backend.counts.held)
        if end == "full":
            router.backend.prefill.waiting = 100
        else:
            router.backend.decode.state = "draining"
        until(lambda: metrics(router, "gave_up_total") == 1)
        if end == "full":
            assert pair_of(router)["waits_for"].startswith("given up: ")
        else:
            # A pair that cannot serve is not asked, so it waits for nothing.
            until(lambda: pair_of(router)["waits_for"] is None)
        until(lambda: router.backend.counts.held == 0)


def test_a_check_is_given_up_at_its_deadline_and_holds_nothing_then(folder: Path) -> None:
    with watched(folder, probe_deadline_s=2.0) as router:
        router.backend.faults.hold_prefill = router.call(asyncio.Event)
        set_layout(router, "TP")
        until(lambda: metrics(router, "gave_up_total") == 1)
        assert pair_of(router)["waits_for"] == "given up: no answer within 2 s"
        until(lambda: router.backend.counts.held == 0)
        assert probes(router)["alarms"] == 0


def test_a_router_that_drains_asks_no_more(folder: Path) -> None:
    with watched(folder) as router:
        router.backend.faults.hold_prefill = router.call(asyncio.Event)
        set_layout(router, "TP")
        until(lambda: router.backend.counts.held)
        assert httpx.post(f"{router.admin_url}/admin/drain").json()["drained"]
        until(lambda: router.backend.counts.held == 0)
        assert pair_of(router)["checks"] == 1


def test_users_counts_have_nothing_of_it_and_its_requests_are_marked(folder: Path) -> None:
    with watched(folder) as router:
        page = httpx.get(f"{router.url}/metrics").text
        for name in ("splash_generated_tokens_total", "splash_prompt_tokens_total", "splash_requests_total{"):
            assert f"\n{name}" not in page.replace("# ", "")
        assert "splash_ttft_seconds_count 0" in page
        requests = router.backend.counts.requests
        assert len(requests) == 8
        assert {request.sampling.purpose for request in requests} == {common_pb2.PURPOSE_PROBE}
        assert {request.sampling.temperature for request in requests} == {0.0}


def test_a_router_that_starts_anew_takes_nothing_wrong_for_right(folder: Path) -> None:
    with running_router(folder) as host:
        addresses = {phase: (address,) for phase, address in host.backend.addresses.items()}
        with watched(folder, **addresses):
            until(lambda: host.backend.prefill.kept and host.backend.decode.kept)
        host.backend.faults.wrong_layouts = frozenset({"DP"})
        with running_router(folder, **addresses, probe_every_s=HOUR) as later:
            until(lambda: probes(later)["alarms"])
            assert pair_of(later)["last"]["verdict"] == "DRIFT"


def test_without_a_period_nothing_is_asked(folder: Path) -> None:
    with running_router(folder) as router:
        until(lambda: groups(router)["decode"]["state"] == "ready")
        assert probes(router) == {"every_s": 0.0, "alarms": 0, "out": [], "pairs": [], "drifts": []}
        assert groups(router)["decode"]["canary_alarm"] is None
        assert router.backend.counts.decode_calls == 0


def test_prompts_are_fixed_and_made_for_ranks_and_pages(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    prompts = fixed_prompts(tokenizer, ranks=16, page_size=8, longest=100)
    assert prompts == fixed_prompts(Tokenizer.load(folder), ranks=16, page_size=8, longest=100)
    assert [len(prompt) for prompt in prompts] == [min(17 + 8 * index, 100) for index in range(16)]
    assert len(set(prompts)) == 16
    special = {token for prompt in prompts for token in prompt if tokenizer.is_special(token)}
    assert special == set(tokenizer.encode(SPECIAL[0], add_special_tokens=False))
    assert len(fixed_prompts(tokenizer, ranks=2, page_size=64, longest=1000)) == 4
    assert fixed_prompts(tokenizer, ranks=2, page_size=64, longest=1) == ()
