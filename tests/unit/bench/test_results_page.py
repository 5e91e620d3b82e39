"""The results page is what the script makes of the documents, formulas first."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.bench.results_formulas import FORMULAS
from services.bench.results_page import page, read_documents, write_page
from splash_core.errors import ConfigError

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def document(bench: str, rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    return {
        "bench": bench,
        "machine": "a machine",
        "commit": "abc1234",
        "date": "2026-11-30T10:00:00+00:00",
        "settings": settings,
        "rows": rows,
        "file": f"{bench}-2026-11-30-abc1234.json",
    }


def switch_row(source: str, destination: str, mode: str, **fields: Any) -> dict[str, Any]:
    return {
        "phase": "prefill",
        "from": source,
        "to": destination,
        "mode": mode,
        "batch": 16,
        "context": 16384,
        "chunk": 2048,
        **fields,
    }


MEASURED = {
    "layer_ms": 0.61,
    "ready_ms_p50": 200.0,
    "step_ms_p50": 201.0,
    "exposed_ms_p50": 1.0,
    "exposed_ms_p95": 1.5,
    "transfer_ms_p50": 0.8,
    "first_wait_ms_p50": 0.7,
    "later_waits_ms_p50": 0.1,
    "interference_ms_p50": 0.2,
    "formula_ms": 0.61,
    "bytes_per_rank": 3 << 30,
    "plan_ms_p50": 12.0,
    "reps": 15,
}


def test_the_committed_page_is_up_to_date() -> None:
    assert (RESULTS / "README.md").read_text() == page(read_documents(RESULTS)), "run `make results`"


def test_formulas_come_before_all_tables() -> None:
    text = page([document("switch", [switch_row("TP", "DP", "overlapped", **MEASURED)], ranks=4)])
    assert all(formula in text for formula in FORMULAS.values())
    assert text.index("exposed    =") < text.index("## Tables") < text.index("TP → DP")


def test_modes_of_a_direction_stand_side_by_side() -> None:
    rows = [
        switch_row("TP", "DP", "blocking", **MEASURED | {"exposed_ms_p50": 37.2}),
        switch_row("TP", "DP", "overlapped", **MEASURED),
        switch_row("CP", "TP", "blocking", reason="no room"),
        switch_row("CP", "TP", "overlapped", reason="no room"),
    ]
    text = page([document("switch", rows)])
    (line,) = [line for line in text.splitlines() if line.startswith("| TP → DP")]
    assert "| 200.0 | 0.610 | 3.00 GiB | 15 | 37.20 (1.50) |" in line
    assert "| 1.00 (1.50) | 0.50% | 0.700 + 0.100 + 0.200 | 0.800 | 0.610 |" in line
    assert text.count("* CP → TP: no room") == 1


def test_decode_tables_tell_what_was_copied_ahead() -> None:
    decode = {
        "layer_ms": None,
        "ready_ms_p50": 12.0,
        "before_ms_p50": 13.0,
        "exposed_ms_p50": 3.0,
        "exposed_ms_p95": 4.0,
        "bytes_per_rank": 0,
        "reps": 5,
    }
    ahead = {
        "ahead_bytes_per_rank": 3 << 30,
        "ahead_steps": 40,
        "ahead_ms_p50": 13.5,
        "ahead_slowdown": 0.04,
        "executed_as": "precopied",
    }
    rows = [
        switch_row("TP", "DP", "precopied", **decode | ahead),
        switch_row("CP", "TP", "precopied", **decode | {"executed_as": "overlapped"}),
    ]
    lines = page([document("switch", rows)]).splitlines()
    assert (
        "| TP → DP | 12.00 |  | 0 B | 5 | 13.00 | 3.00 (4.00) | 25.00% | 3.00 GiB in 40 steps, +4.0% |"
        in lines
    )
    assert "| CP → TP | 12.00 |  | 0 B | 5 | 13.00 | 3.00 (4.00), as overlapped | 25.00% | nothing |" in lines


def test_churn_tells_what_it_undid() -> None:
    figures = {
        "layer_ms": None,
        "ready_ms_p50": 10.0,
        "before_ms_p50": 11.0,
        "exposed_ms_p50": 1.0,
        "exposed_ms_p95": 2.0,
        "bytes_per_rank": 0,
        "reps": 3,
        "executed_as": "overlapped",
        "cancelled": 2,
        "finished": 1,
        "admitted": 3,
        "turned_away": 0,
        "copied_bytes": 3 << 30,
        "invalidated_bytes": 1 << 30,
        "recopied_bytes": 0,
        "committed": 2,
        "fallback": "no room",
    }
    lines = page([document("switch", [switch_row("CP", "TP", "churn", **figures)])]).splitlines()
    (line,) = [line for line in lines if line.startswith("| CP → TP")]
    assert "1.00 (2.00), as overlapped | 10.00% |" in line
    assert "| 2 cancelled, 1 finished, 3 admitted | 3.00 GiB, 1.00 GiB, 0 B | 2 of 3: no room |" in line


def test_a_sweep_on_gpus_stands_beside_the_peer() -> None:
    def row(phase: str, layout: str, **figures: float) -> dict[str, Any]:
        return {"phase": phase, "layout": layout, "batch": 1, "input": 4096, **figures}

    ours = [
        row("prefill", "TP", tokens_per_s=20000.0, step_ms_p50=9.0),
        row("decode", "TP", tokens_per_s=100.0, step_ms_p50=6.0),
        row("decode", "CP", tokens_per_s=100.0, step_ms_p50=6.0),
    ]
    theirs = [row("prefill", "TP", tokens_per_s=10000), row("decode", "TP", step_ms_p50=12.0)]
    documents = [
        document("sweep", ours, device="cuda", ranks=2),
        document("peer", theirs, engine="peer", ranks=4),
    ]
    text = page(documents)
    assert "| prefill | TP | 1 | 4,096 | 20,000 | 9.00 | 10,000 | 2.00 |" in text
    assert "| decode | TP | 1 | 4,096 | 100.0 | 6.00 | 12.00 | 0.50 |" in text
    assert "| decode | CP | 1 | 4,096 | 100.0 | 6.00 |  |  |" in text
    assert "| decode | TP | 1 | 4,096 | 100.0 | 6.00 |\n" in page([document("sweep", ours, device="cpu")])
    # And the other way round, per GPU: 20,000 / 2 to 10,000 / 4, and 1 / 6 ms / 2 to 1 / 12 ms / 4.
    assert "**peer ran on 4 GPUs, ours on 2.**" in text
    assert "| prefill | TP | 1 | 4,096 |  | 2 | 2,500 | 10,000 | 4.00 | abc1234 |  |" in text
    assert "| decode | TP | 1 | 4,096 | 12.00 | 2, 6.00 | 20.8 | 83.3 | 4.00 | abc1234 |  |" in text


def test_the_latest_sweep_stands_beside_the_peer() -> None:
    def sweep(date: str, step_ms: float, ranks: int) -> dict[str, Any]:
        row = {"phase": "decode", "layout": "DP", "batch": 16, "input": 4096, "step_ms_p50": step_ms}
        measured = document("sweep", [row | {"tokens_per_s": 16e3 / step_ms}], device="cuda", ranks=ranks)
        return measured | {"date": date, "commit": date}

    theirs = [{"phase": "decode", "layout": "DP", "batch": 16, "input": 4096, "step_ms_p50": 10.0}]
    documents = [
        sweep("2026-12-02", 8.0, 2),
        sweep("2026-12-01", 9.0, 2),
        sweep("2026-12-01", 5.0, 4),
        document("peer", theirs, engine="peer", ranks=4),
    ]
    lines = page(documents).splitlines()
    assert "| decode | DP | 16 | 4,096 | 10.00 | 2, 8.00 | 400.0 | 1,000 | 2.50 | 2026-12-02 |  |" in lines
    assert "| decode | DP | 16 | 4,096 | 10.00 | 4, 5.00 | 400.0 | 800.0 | 2.00 | 2026-12-01 |  |" in lines
    assert not any("9.00" in line and "2, " in line for line in lines)


def test_a_sweep_tells_its_floors() -> None:
    decode = {
        "phase": "decode",
        "layout": "TP",
        "batch": 16,
        "input": 4096,
        "tokens_per_s": 800.0,
        "step_ms_p50": 20.0,
        "floor_weights_ms": 13.0,
        "floor_attention_ms": 1.0,
        "collectives_ms": 1.0,
        "floor_ms": 15.0,
        "of_floor": 0.75,
    }
    prefill = {
        "phase": "prefill",
        "layout": "TP",
        "batch": 16,
        "input": 4096,
        "tokens_per_s": 10000.0,
        "step_ms_p50": 20.0,
        "total_ms_p50": 6000.0,
        "floor_ms": 3000.0,
        "of_floor": 0.5,
    }
    text = page([document("sweep", [decode, prefill])])
    assert "| 800.0 | 20.00 | 15.00 = 13.00 + 1.00 + 1.00 | 75% |" in text
    assert "| 10,000 | 20.00 | 3,000 of 6,000 | 50% |" in text


def test_what_was_not_reached_or_did_not_fit_is_named(tmp_path: Path) -> None:
    row = {
        "primitive": "kv",
        "from": "DP",
        "to": "TP",
        "batch": 16,
        "context": 131072,
        "reason": "rank 0 has room for 10 pages",
    }
    whole = document("primitives", [row], ranks=4) | {"not_reached": ["KV CP → DP, 16 × 131072"]}
    (tmp_path / "one.json").write_text(json.dumps(whole))
    text = write_page(tmp_path).read_text()
    assert "* DP → TP, S 131072: rank 0 has room for 10 pages" in text
    assert "Not reached in the time given: KV CP → DP, 16 × 131072." in text


def test_faults_are_counted_and_those_that_did_not_hold_are_told() -> None:
    row = {"transport": "shm", "fault": "gone", "what": "the client leaves", "points": 8}
    row |= {"repetitions": 100, "held": 99, "seconds_p50": 1.25, "seconds_max": 4.0}
    failure = {"number": 7, "point": "chunk", "failure": "AssertionError: still held"}
    text = page([document("faults", [row | {"failures": [failure]}], seed=1)])
    assert "| shm | the client leaves | 8 | 100 | 99 | 1.2 | 4.0 |" in text
    assert "* shm, gone 7 (chunk): AssertionError: still held" in text
    assert "Did not hold" not in page([document("faults", [row | {"failures": []}], seed=1)])


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"other\.json"):
        read_documents(tmp_path)
    with pytest.raises(ConfigError, match="not a folder"):
        read_documents(tmp_path / "absent")
