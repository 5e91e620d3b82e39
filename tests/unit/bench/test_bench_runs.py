"""Every benchmark on ranks, at tiny size on CPU: real numbers, all directions, nothing lost on the way."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.bench import capacity, primitives, sweep, switch
from services.bench.recorder import RowRecorder
from services.bench.settings import (
    INPROCESS,
    BenchSettings,
    CapacitySettings,
    PrimitivesSettings,
    SweepSettings,
    SwitchSettings,
)
from services.bench.spmd import Program, resolved, run_spmd
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.switch.manifest import SwitchMode

DIRECTIONS = list(itertools.permutations(["TP", "CP", "DP", "DOP"], 2))
TINY: dict[str, Any] = {"device": "cpu", "model": "tiny", "ranks": 2, "backend": INPROCESS, "warmup": 1}


def tiny(ranks: int) -> dict[str, Any]:
    return TINY | {"ranks": ranks}


def measure(program: Program, settings: BenchSettings) -> dict[str, Any]:
    document = run_spmd(program, resolved(settings))
    assert json.loads(json.dumps(document)) == document
    assert document["settings"]["model"] == "bench-tiny"
    assert "not_reached" not in document
    return document


def directions(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["from"], row["to"]) for row in rows}


class TestPrimitives:
    @pytest.mark.parametrize("ranks", [2, 4])
    def test_four_weight_gathers_and_seven_kv_collectives(self, ranks: int) -> None:
        asked = PrimitivesSettings(**tiny(ranks), batch="4", context="48", reps=3)
        rows = measure(primitives.run, asked)["rows"]
        weights = [row for row in rows if row["primitive"].startswith("weights")]
        kv = [row for row in rows if row["primitive"].startswith("kv")]
        assert directions(weights) == {("TP", "CP"), ("TP", "DP"), ("DOP", "CP"), ("DOP", "DP")}
        assert directions(kv) == {
            ("CP", "TP"),
            ("CP", "DP"),
            ("CP", "DOP"),
            ("DP", "TP"),
            ("DP", "CP"),
            ("DOP", "TP"),
            ("DOP", "CP"),
        }
        assert len(rows) == 11
        for row in rows:
            assert row["ms_p50"] > 0
            assert row["gb_s"] == pytest.approx(row["bytes_per_rank"] / row["ms_p50"] / 1e6, abs=1e-3)
            assert row["of_best"] == pytest.approx(row["gb_s"] / row["nccl_gb_s"], rel=0.1, abs=1e-3)
            assert row["ways_ms"][row["best_way"]] == min(row["ways_ms"].values())
            limited = [ms for way, ms in row["ways_ms"].items() if way.endswith("(transfer)")]
            assert row["of_limited"] == pytest.approx(min(limited) / row["ms_p50"], rel=1e-2, abs=1e-3)
        assert all(row["read_ms"] > 0 and row["write_ms"] > 0 for row in kv)

    def test_bytes_are_those_of_the_account(self) -> None:
        rows = measure(primitives.run, PrimitivesSettings(**TINY, batch="4", context="48", reps=1))["rows"]
        by_direction = {(row["from"], row["to"], row["primitive"]): row["bytes_per_rank"] for row in rows}
        page_layer = 4 * (32 + 8) * 4
        # 4 requests of 12 pages: half of all pages are missing for TP, half of each rank's own for CP.
        assert by_direction["DP", "TP", "kv all_gather"] == 24 * page_layer
        assert by_direction["CP", "DP", "kv all_to_all"] == 12 * page_layer
        projections = 8 * ((16 + 8) * 24 + (16 + 16) * 32 + 16 * 64) * 4
        assert by_direction["TP", "DP", "weights all_gather"] == projections // 2

    def test_what_does_not_fit_says_why(self) -> None:
        asked = PrimitivesSettings(**TINY, batch="4", context="48,4K", reps=1, arena_bytes=1 << 20)
        rows = measure(primitives.run, asked)["rows"]
        refused = [row for row in rows if "reason" in row]
        assert {row["context"] for row in refused} == {4096}
        assert len(refused) == 7
        assert all("pages" in row["reason"] for row in refused)


class TestSwitch:
    @pytest.mark.parametrize(
        ("phase", "modes"), [("prefill", "blocking,overlapped"), ("decode", ",".join(SwitchMode))]
    )
    def test_all_directions_in_all_modes(self, phase: str, modes: str) -> None:
        sizes: dict[str, Any] = {"batch": "4", "context": "40", "chunk": "12", "layers": 2}
        asked = SwitchSettings(**TINY, **sizes, phase=phase, modes=modes, reps=2, ordinary=2)
        rows = measure(switch.run, asked)["rows"]
        seen = [(row["from"], row["to"], row["mode"]) for row in rows]
        assert seen == [(a, b, mode) for a, b in DIRECTIONS for mode in modes.split(",")]
        for row in rows:
            assert row["phase"] == phase
            assert (row["batch"], row["context"]) == (4, 40)
            assert row["chunk"] == (12 if phase == "prefill" else 4)
            assert row["reps"] == 2
            assert row["step_ms_p50"] > 0
            assert row["ready_ms_p50"] > 0
            assert row["exposed_ms_p95"] >= row["exposed_ms_p50"]
            assert "reason" not in row

    def test_bytes_are_equal_in_all_modes_and_phases(self) -> None:
        received: dict[tuple[str, str], set[int]] = {}
        for phase in ("prefill", "decode"):
            asked = SwitchSettings(
                **TINY, phase=phase, batch="4", context="40", chunk="4", reps=1, ordinary=2, layers=2
            )
            for row in measure(switch.run, asked)["rows"]:
                received.setdefault((row["from"], row["to"]), set()).add(row["bytes_per_rank"] // 1024)
        assert received["TP", "DOP"] == received["DP", "DOP"] == {0}
        # A decode window has grown by a few rows when it switches, less than a page of each request.
        prefill = {direction: min(sizes) for direction, sizes in received.items()}
        assert all(sizes <= {prefill[direction], *range(prefill[direction], prefill[direction] + 8)}
                   for direction, sizes in received.items())  # fmt: skip
        assert prefill["DOP", "CP"] > prefill["DP", "CP"] > 0

    def test_a_switch_that_does_not_fit_says_why(self) -> None:
        asked = SwitchSettings(**TINY, batch="4", context="192", chunk="4", reps=1, arena_bytes=650 << 10)
        rows = measure(switch.run, asked)["rows"]
        refused = {(row["from"], row["to"]) for row in rows if "reason" in row}
        assert refused
        assert refused == {direction for direction in DIRECTIONS if "TP" in direction}

    @pytest.mark.parametrize(
        ("allowed", "reps", "missing"),
        [
            (8, [3, 3, 2], []),
            (4, [2, 1, 1], ["DP → TP", "TP → CP"]),
            (2, [1, 1], ["TP → CP", "TP → DP", "DP → TP"]),
        ],
    )
    def test_short_of_time_all_directions_have_some_repetitions(
        self, monkeypatch: pytest.MonkeyPatch, allowed: int, reps: list[int], missing: list[str]
    ) -> None:
        """Every rank has time for so many repetitions."""
        asked_of: Counter[int] = Counter()

        def fits(recorder: RowRecorder, seconds: float) -> bool:
            asked_of[id(recorder)] += 1
            return asked_of[id(recorder)] <= allowed

        monkeypatch.setattr(RowRecorder, "fits", fits)
        fields: dict[str, Any] = {**TINY, "warmup": 0, "layers": 2, "directions": "TP:DP,DP:TP,TP:CP"}
        asked = SwitchSettings(**fields, batch="2", context="8", chunk="2", modes="overlapped", reps=5)
        document = run_spmd(switch.run, resolved(asked))
        assert [row["reps"] for row in document["rows"]] == reps
        not_reached = document.get("not_reached", [])
        assert [name.split(",")[0].removeprefix("prefill ") for name in not_reached] == missing

    def test_unknown_modes_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="modes"):
            run_spmd(switch.run, resolved(SwitchSettings(**TINY, modes="ready")))


class TestCapacity:
    @pytest.mark.parametrize("ranks", [2, 4])
    def test_pools_hold_what_the_account_says(self, ranks: int) -> None:
        asked = CapacitySettings(**tiny(ranks), arena_bytes=4 << 20)
        rows = measure(capacity.run, asked)["rows"]
        assert [row["layout"] for row in rows] == list(Layout)
        by_layout = {row["layout"]: row for row in rows}
        for row in rows:
            assert row["distinct_tokens"] == pytest.approx(row["account_tokens"], rel=0.01)
            assert row["pool_tokens_per_rank"] > 0
        assert by_layout["TP"]["distinct_tokens"] == by_layout["TP"]["pool_tokens_per_rank"]
        assert by_layout["DOP"]["distinct_tokens"] == ranks * by_layout["TP"]["distinct_tokens"]
        assert by_layout["DOP"]["distinct_tokens"] > by_layout["DP"]["distinct_tokens"]

    def test_recorded_steps_are_told_by_rows_and_held_against_what_is_set_aside(self) -> None:
        fields: dict[str, Any] = {**TINY, "arena_bytes": 4 << 20, "batch": "1,5", "layouts": "TP,DOP"}
        rows = measure(capacity.run, CapacitySettings(**fields, graphs="on", graph_bytes=1 << 30))["rows"]
        for row in rows:
            assert set(row["graph_bytes"]) == {"1", "3"}
            assert all(size > 0 for size in row["graph_bytes"].values())
            assert row["graph_budget_bytes"] == 1 << 30
        plain = measure(capacity.run, CapacitySettings(**fields))["rows"]
        assert not any("graph_bytes" in row for row in plain)
        with pytest.raises(ConfigError, match="graph-bytes"):
            run_spmd(capacity.run, resolved(CapacitySettings(**fields, graphs="on", graph_bytes=1)))


class TestSweep:
    def test_every_layout_prefills_and_decodes(self) -> None:
        asked = SweepSettings(**TINY, batch="1,3", input="8,20", chunk_tokens=16, steps=3, reps=2)
        rows = measure(sweep.run, asked)["rows"]
        cells = {(row["phase"], row["layout"], row["batch"], row["input"]) for row in rows}
        assert cells == set(itertools.product(("prefill", "decode"), map(str, Layout), (1, 3), (8, 20)))
        assert all(row["tokens_per_s"] > 0 and row["step_ms_p50"] > 0 for row in rows)
        prefills = {(row["batch"], row["input"]): row["steps"] for row in rows if row["phase"] == "prefill"}
        assert prefills == {(1, 8): 1, (1, 20): 2, (3, 8): 2, (3, 20): 4}

    def test_decode_steps_are_replayed_where_they_are_recorded(self) -> None:
        sizes: dict[str, Any] = {"batch": "1,3", "input": "8", "steps": 3, "phase": "decode"}
        rows = measure(sweep.run, SweepSettings(**TINY, **sizes, graphs="on"))["rows"]
        assert [row["replayed"] for row in rows] == [3] * len(rows)
        assert all(row["record_s"] >= 0 for row in rows)
        rows = measure(sweep.run, SweepSettings(**TINY, **sizes))["rows"]
        assert [row["replayed"] for row in rows] == [0] * len(rows)

    def test_a_cell_that_does_not_fit_is_a_row_with_the_reason(self) -> None:
        asked = SweepSettings(
            **TINY, layouts="DP,TP", batch="2", input="8,2K", arena_bytes=600 << 10, steps=2, reps=1
        )
        rows = measure(sweep.run, asked)["rows"]
        refused = [row for row in rows if "reason" in row]
        assert {(row["input"], row["tokens_per_s"]) for row in refused} == {(2048, None)}
        assert len(refused) == 4


class TestDocument:
    def test_rows_are_written_as_they_are_measured(self, tmp_path: Path) -> None:
        fields: dict[str, Any] = {**TINY, "layouts": "TP,DP", "out": str(tmp_path), "commit": "abc1234"}
        asked = CapacitySettings(**fields, label="small")
        document = measure(capacity.run, asked)
        (path,) = tmp_path.glob("*.json")
        assert path.name == f"capacity-small-{document['date'][:10]}-abc1234.json"
        assert json.loads(path.read_text()) == document
        measure(capacity.run, asked)
        assert len(list(tmp_path.glob("*.json"))) == 2, "an earlier run's document is kept"

    def test_a_budget_ends_the_run_and_names_what_is_missing(self, tmp_path: Path) -> None:
        asked = SweepSettings(**TINY, batch="1", input="8", budget_s=1e-6, out=str(tmp_path))
        document = run_spmd(sweep.run, resolved(asked))
        assert document["rows"] == []
        assert len(document["not_reached"]) == 2 * len(Layout)
        (path,) = tmp_path.glob("*.json")
        assert json.loads(path.read_text())["not_reached"] == document["not_reached"]

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [("ranks", 0, "ranks"), ("backend", "smoke", "backend"), ("layouts", "XP", "layout")],
    )
    def test_bad_settings_are_refused(self, field: str, value: object, message: str) -> None:
        fields: dict[str, Any] = {**TINY, field: value}
        with pytest.raises(ConfigError, match=message):
            run_spmd(capacity.run, resolved(CapacitySettings(**fields)))
