"""`splash bench burst` on real processes: every arm answers alike, and residents are counted."""

import json
from pathlib import Path

import pytest

from services.bench.burst import measure
from services.bench.burst_settings import BurstSettings
from services.bench.burst_tables import burst_tables

pytestmark = pytest.mark.e2e


def test_bursts_in_two_arms_and_under_the_policy(tiny_v3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.bench.burst._REST_S", 0.0)
    settings = BurstSettings(
        model=str(tiny_v3),
        dtype="fp64",
        bursts="1:32:4,4:12:24",
        arms="TP/DP,DOP/CP,policy",
        page_size=4,
        kv_bytes=600_000,
        chunk_tokens=16,
        max_running=8,
    )
    *_, document = measure(settings, progress=lambda _: None)
    rows = json.loads(json.dumps(document.to_json()))["rows"]
    assert [(row["arm"], row["batch"]) for row in rows] == [
        (arm, batch) for arm in ("TP/DP", "DOP/CP", "policy") for batch in (1, 4)
    ]
    assert [row["differing"] for row in rows] == [0] * 6
    assert all(0 < row["ttft_s_last"] < row["seconds"] for row in rows)
    assert all(row["resident"].get("decode", 0) <= row["batch"] for row in rows)
    assert "DOP/CP" in burst_tables(rows)
