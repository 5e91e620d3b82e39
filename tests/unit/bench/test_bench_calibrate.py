"""`splash calibrate` at tiny size on CPU: what it writes is complete and usable; never how fast it is."""

import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from services.bench.calibrate_beside import BesideTransfers, besides_of
from services.bench.calibrate_command import calibrate
from services.bench.calibrate_fit import concluded, model_of, profile_of, steps_of
from services.bench.calibrate_grid import HELD_OUT_EVERY, Grid, Mix, held_out
from services.bench.calibrate_settings import CalibrateSettings
from services.bench.results_page import section
from services.bench.rig import Rig
from services.bench.settings import INPROCESS
from services.bench.shapes import measured_spec
from services.outputs import check_outputs
from splash_core.cost.accuracy import choices
from splash_core.cost.interference import with_interference
from splash_core.cost.profile import HardwareProfile, analytical_profile
from splash_core.cost.samples import operations_of
from splash_core.cost.switch import SwitchBytes, switch_cost
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Phase
from splash_core.spec.hardware import named_gpu

LAYOUTS = ("TP", "CP", "DP", "DOP")
GRID = Grid(
    batches=(1, 4, 6),
    prompts=(1, 3),
    contexts=(8, 40),
    rows=(6, 16),
    num_ranks=2,
    most_tokens=256,
    most_pairs=1000,
)
TINY: dict[str, Any] = {
    "device": "cpu",
    "model": "bench-tiny",
    "ranks": 2,
    "backend": INPROCESS,
    "batch": "1,3",
    "prompts": "1,2",
    "context": "8",
    "most_tokens": 4096,
    "rows": "4,8",
    "reps": 2,
    "warmup": 1,
    "commit": "abc",
}


class TestGrid:
    def test_it_has_both_phases_in_turn_and_all_mixes(self) -> None:
        batches = GRID.in_order(0)
        assert {(batch.phase, batch.mix) for batch in batches} == {(p, m) for p in Phase for m in Mix}
        assert [batch.phase for batch in batches[:4]] == [*Phase, *Phase]
        assert batches == GRID.in_order(0)
        assert [str(batch) for batch in batches] != [str(batch) for batch in GRID.in_order(1)]
        assert sorted(map(str, batches)) == sorted(map(str, GRID.in_order(1)))

    def test_it_keeps_its_bounds(self) -> None:
        small = replace(GRID, most_tokens=100, most_pairs=200)
        assert all(batch.tokens <= 100 for batch in small.in_order(0))
        assert {batch.num_rows for batch in small.in_order(0) if batch.phase is Phase.PREFILL} == {6, 16}
        assert len(small.in_order(0)) < len(GRID.in_order(0))

    def test_skewed_batches_lie_mostly_on_one_owner(self) -> None:
        skewed = [batch for batch in GRID.in_order(0) if batch.mix is Mix.SKEWED and len(batch.requests) >= 4]
        assert skewed
        for batch in skewed:
            owners = [request.owner for request in batch.requests]
            assert owners.count(0) >= 3 * owners.count(1) > 0
            assert len({request.history for request in batch.requests}) > 1

    def test_every_third_is_held_out(self) -> None:
        assert [held_out(number) for number in range(6)] == [False, False, True] * 2
        assert HELD_OUT_EVERY == 3


def run(settings: CalibrateSettings, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert calibrate(settings, as_json=True) == 0
    return json.loads(capsys.readouterr().out)


def test_a_tiny_calibration_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = CalibrateSettings(**TINY, out=str(tmp_path / "p" / "profile.json"), results=str(tmp_path))
    document = run(settings, capsys)
    _check_rows(document)
    _check_profile(document, tmp_path / "p" / "profile.json")
    _check_accuracy(document)
    _check_interference(document)
    (written,) = tmp_path.glob("calibrate-*.json")
    assert json.loads(written.read_text()) == document
    assert "Held-out" in section(document)
    again = run(CalibrateSettings(measured=str(written)), capsys)
    assert {name: value for name, value in again.items() if name != "file"} == document


def test_measured_interference_is_in_the_profile_and_in_the_price(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few: dict[str, Any] = TINY | {"batch": "1,2", "prompts": "1", "rows": "4", "layouts": "DP"}
    document = run(CalibrateSettings(**few), capsys)
    _check_interference(document)
    for row in document["rows"]:
        if "beside" in row:
            row |= {"alone_ms": 4.0, "plain_ms": [10.0, 20.0], "beside_ms": [13.0, 23.0]}
    profile = profile_of(concluded(document))
    assert profile.interference == pytest.approx(0.75)
    assert profile.provenance.note.endswith("; interference of 4 pairs of steps")
    assert HardwareProfile.from_json(profile.to_json()) == profile
    moved, model = SwitchBytes(weights=0, kv=1 << 20), model_of(concluded(document))
    cost = switch_cost(model.profile, moved, layers=4, step_s=1e9)
    assert cost.slowed_s == pytest.approx(0.75 * 3 * cost.exposed_s)
    without = {**document, "rows": [row for row in document["rows"] if "beside" not in row]}
    assert profile_of(concluded(without)).interference == named_gpu("cpu").interference


def test_one_rank_has_nothing_beside_its_steps() -> None:
    alone: dict[str, Any] = TINY | {"ranks": 1, "page_size": 4}
    assert list(BesideTransfers(cast("Rig", None), CalibrateSettings(**alone)).rows()) == []


def test_recorded_steps_and_collectives_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """As on GPUs, with the recorder of CPUs: decode steps are replayed."""
    document = run(CalibrateSettings(**TINY, graphs="on", layouts="DP,DOP"), capsys)
    decodes = [row for row in document["rows"] if row.get("phase") == "decode"]
    assert decodes
    assert all("graph_bytes" in row and row["layout"] in ("DP", "DOP") for row in decodes)
    _check_interference(document)


def test_small_collectives_count_as_recorded_steps_make_them() -> None:
    rows = [
        {"micro": "gather", "comm": comm, "bytes": size, "ms": ms}
        for comm, size, ms in (
            ("compute", 8, 3.0),
            ("compute", 4096, 4.0),
            ("recorded", 8, 1.0),
            ("recorded", 4096, 9.0),
        )
    ]
    assert [one.seconds for one in operations_of(rows, recorded_bytes=1024)] == [0.004, 0.001]
    assert [one.seconds for one in operations_of(rows[:2], recorded_bytes=1024)] == [0.003, 0.004]


def _check_rows(document: dict[str, Any]) -> None:
    rows = document["rows"]
    assert {row["micro"] for row in rows if "micro" in row} == {
        "product",
        "attend",
        "gather",
        "exchange",
        "scatter",
        "outside",
    }
    steps: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in rows:
        if "phase" in row:
            steps[row["batch"]][row["layout"]] = row
            assert row["warmup"] == 2
            assert len(row["ms"]) == row["warmup"] + settings_reps(document)
            assert all(ms > 0 for ms in row["ms"])
    assert all(set(layouts) == set(LAYOUTS) for layouts in steps.values())
    assert all(len({row["held_out"] for row in layouts.values()}) == 1 for layouts in steps.values())
    held = [batch for batch, layouts in steps.items() if layouts["TP"]["held_out"]]
    assert 2 <= len(held) < len(steps) / 2
    assert "not_reached" not in document


def settings_reps(document: dict[str, Any]) -> int:
    return document["settings"]["reps"]


def _check_profile(document: dict[str, Any], path: Path) -> None:
    profile = HardwareProfile.from_json(path.read_text())
    assert profile == profile_of(document)
    profile.check_group(device="cpu", dtype="fp32", ranks=2)
    provenance = profile.provenance
    assert (provenance.source, provenance.commit, profile.ranks) == ("measured", "abc", 2)
    assert provenance.machine == document["machine"]
    assert set(provenance.residuals) == {f"{phase.value}/{layout}" for phase in Phase for layout in LAYOUTS}


def _check_interference(document: dict[str, Any]) -> None:
    """Transfers of known bytes beside steps of both phases, in pairs."""
    beside = [row for row in document["rows"] if "beside" in row]
    assert [row["beside"] for row in beside] == [phase.value for phase in Phase]
    for row in beside:
        assert row["bytes"] > 0
        assert len(row["plain_ms"]) == len(row["beside_ms"]) == settings_reps(document)
        assert all(ms > 0 for ms in (row["alone_ms"], *row["plain_ms"], *row["beside_ms"]))
    found = profile_of(document)
    assert math.isfinite(found.interference)
    assert found.interference == with_interference(named_profile(), besides_of(beside)).interference
    assert f"slows a step down by {found.interference:.3g} s" in section(document)


def named_profile() -> HardwareProfile:
    return analytical_profile(named_gpu("cpu"), dtype="fp32")


def _check_accuracy(document: dict[str, Any]) -> None:
    accuracy, steps = document["accuracy"], steps_of(document)
    counted = sum(group["steps"] for group in accuracy["groups"])
    assert counted == len(steps) == sum("phase" in row for row in document["rows"])
    found = choices(model_of(document), steps)
    assert [one["chosen"] for one in accuracy["choices"]] == [one.chosen.value for one in found]
    assert all(one["slower"] >= 0 for one in accuracy["choices"])
    assert {Layout(one["best"]) for one in accuracy["choices"]} <= set(Layout)


def test_what_is_no_document_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"bench": "sweep"}')
    for path in (other, tmp_path / "missing.json"):
        with pytest.raises(ConfigError, match=f"--measured {path}.*splash calibrate"):
            calibrate(CalibrateSettings(measured=str(path)), as_json=True)


def test_a_model_is_a_shape_a_folder_or_a_known_name(tmp_path: Path) -> None:
    assert measured_spec("bench-v3", layers=2) == measured_spec("v3", layers=2)
    assert measured_spec("deepseek-v2-lite").layers == 27
    assert measured_spec("deepseek-v2-lite", layers=3).layers == 3
    with pytest.raises(ConfigError, match="lower --layers"):
        measured_spec("deepseek-v2-lite", layers=28)
    with pytest.raises(ConfigError, match="nowhere"):
        measured_spec("nowhere")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"model": "nowhere"}, "nowhere"),
        ({"layouts": "TP,ZZ"}, "ZZ"),
        ({"batch": "0"}, "--batch"),
        ({"rows": "x"}, "--rows"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_ranks_are(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        calibrate(CalibrateSettings(**(TINY | settings)), as_json=True)


@pytest.mark.parametrize("name", ["", "new/"])
def test_a_folder_is_no_file_for_a_profile(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"--out .* is a folder; name a file"):
        check_outputs(CalibrateSettings(out=f"{tmp_path}/{name}"))
