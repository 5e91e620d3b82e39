"""The policy on a live stack: sixteen short requests, then a long one; the layout follows by itself."""

import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.launch import Stack
from splash_core.config import UpSettings

pytestmark = pytest.mark.e2e

DWELL_S = 2.0
POLICY = f"[all]\ndwell_s = {DWELL_S}\ninterval_s = 0.1\n"
SHORT = {"prompt": list(range(20, 36)), "max_tokens": 60}
LONG = {"prompt": [20 + (7 * i) % 900 for i in range(600)], "max_tokens": 150}


def _complete(stack: Stack, body: dict[str, Any], lengths: list[int]) -> None:
    answer = httpx.post(
        f"{stack.url}/v1/completions",
        json={"model": stack.settings.model, "temperature": 0, "ignore_eos": True, **body},
        timeout=240,
    )
    lengths.append(answer.json()["usage"]["completion_tokens"] if answer.status_code == 200 else -1)


def _together(stack: Stack, bodies: list[dict[str, Any]]) -> list[int]:
    lengths: list[int] = []
    threads = [threading.Thread(target=_complete, args=(stack, body, lengths)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lengths


@pytest.mark.timeout(600)
def test_a_load_that_narrows_changes_layout_by_itself_within_the_dwell(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    settings = UpSettings(
        model="smollm2-mla",
        transport="mooncake",
        policy=str(policy),
        port=0,
        admin_port=0,
        run_dir=str(tmp_path / "run"),
    )
    with Stack(settings) as stack:
        assert _together(stack, [SHORT] * 16) == [60] * 16
        assert _together(stack, [LONG]) == [150]
        records = httpx.get(f"{stack.admin_url}/admin/decisions", params={"last": 1000}).json()
        layouts = {
            row["phase"]: row for row in httpx.get(f"{stack.admin_url}/admin/cluster").json()["groups"]
        }
    switches: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record["time"]):
        if record["verdict"] == "SWITCH":
            switches[record["group"]].append(record)
    done = [record for group in switches.values() for record in group]
    assert done, records
    for record in done:
        feasible = {name for name, fits in record["feasible"].items() if fits}
        assert set(record["predicted_ms"]) == feasible >= {record["from"], record["to"]}
        assert record["reason"]
    for group in switches.values():
        assert all(later["time"] - sooner["time"] >= DWELL_S for sooner, later in pairwise(group))
        assert layouts[group[-1]["phase"]]["layout"] == group[-1]["to"]
