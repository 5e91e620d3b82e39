"""Probes over real engines: all switches of both phases, and no false alarm."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.demo.circuit import directed_circuit
from services.launch import Stack
from splash_core.config import STANDARD_LAYOUTS, UpSettings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
STARTS = {"prefill": "TP", "decode": "DP"}


@pytest.fixture(scope="module")
def stack(tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = UpSettings(
        model=str(tiny_v3),
        port=0,
        admin_port=0,
        dtype="fp32",
        page_size=8,
        kv_bytes=4 << 20,
        policy="off",
        run_dir=str(tmp_path_factory.mktemp("run")),
        start_timeout_s=300.0,
    )
    with Stack(settings) as running:
        yield running


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def _probes(stack: Stack) -> dict[str, Any]:
    return httpx.get(f"{stack.admin_url}/admin/canary", timeout=30).json()


def _checked(stack: Stack) -> dict[str, int]:
    """Epochs of the groups at the newest check."""
    pairs = _probes(stack)["pairs"]
    last = pairs[0]["last"] if pairs else None
    return {group["group"]: group["layout_epoch"] for group in last["groups"]} if last else {}


def test_twelve_switches_of_each_phase_raise_no_alarm_and_leave_no_page(stack: Stack) -> None:
    _until(lambda: _checked(stack) == {"prefill-0": 0, "decode-0": 0})
    walks = [directed_circuit(STANDARD_LAYOUTS, start) for start in STARTS.values()]
    assert [len(walk) for walk in walks] == [12, 12]
    seen: list[float] = []
    for number, edges in enumerate(zip(*walks, strict=True), start=1):
        for phase, (_, layout) in zip(STARTS, edges, strict=True):
            body = {"phase": phase, "layout": layout}
            answer = httpx.post(f"{stack.admin_url}/admin/layout", json=body, timeout=120)
            assert answer.status_code == 200, answer.text
        epochs = {"prefill-0": number, "decode-0": number}
        _until(lambda wanted=epochs: _checked(stack) == wanted)
        last = _probes(stack)["pairs"][0]["last"]
        assert (last["verdict"], last["odd"]) == ("SAME", None), last
        seen.append(last["comparison"]["largest_delta"])
    told = _probes(stack)
    assert (told["alarms"], told["drifts"]) == (0, [])
    assert told["pairs"][0]["last"]["comparison"]["tokens"] > 0
    assert max(seen) > 0, "layouts round differently: equal to the last bit would mean that nothing was asked"
    _until(lambda: httpx.get(f"{stack.admin_url}/admin/audit", timeout=30).json()["pages_held"] == 0)
    pinned = [group["pinned"] for group in httpx.get(f"{stack.admin_url}/admin/policy").json()["groups"]]
    assert pinned == [None, None]
