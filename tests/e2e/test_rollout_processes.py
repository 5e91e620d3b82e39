"""`splash bench rollout` and `splash calibrate --streams` on a tiny model: what they write."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.bench.calibrate_command import calibrate
from services.bench.calibrate_settings import CalibrateSettings
from services.bench.results_page import section
from services.bench.rollout import ARMS
from services.bench.rollout_command import rollout
from services.bench.rollout_settings import RolloutSettings
from services.bench.settings import INPROCESS
from splash_core.checkpoints.tiny import write_tiny
from splash_core.cost.profile import HardwareProfile

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROFILE = Path(__file__).parents[2] / "docs/profiles/smollm2-mla-cpu-fp32-t2.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("checkpoint") / "tiny", family="v3", seed=3)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(replace(HardwareProfile.from_json(PROFILE.read_text()), dtype="fp64").to_json())
    return path


def the_document(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def test_all_arms_give_the_same_tokens_and_are_simulated(model: Path, profile: Path, tmp_path: Path) -> None:
    settings = RolloutSettings(
        model=str(model),
        profile=str(profile),
        runs=1,
        requests=6,
        lengths=0.01,
        rest_s=0.0,
        # In fp64 no rounding depends on who shares a batch.
        dtype="fp64",
        page_size=8,
        kv_bytes=16 << 20,
        run_dir=str(tmp_path / "run"),
        out=str(tmp_path / "results"),
        commit="abc",
    )
    assert rollout(settings, False) == 0
    document = the_document(tmp_path / "results")
    rows = {what: [row for row in document["rows"] if row["what"] == what] for what in WHATS}
    assert [row["arm"] for row in rows["arm"]] == list(ARMS)
    for row in rows["arm"]:
        assert row["differing"] == 0
        assert row["makespan_s"] > 0
        assert row["itl_ms_p50"] <= row["itl_ms_p95"] <= row["itl_ms_p99"]
        assert row["left"] == sorted(row["left"])
    assert rows["bound"][0]["differing"] == 0
    assert [row["arm"] for row in rows["simulated"]] == list(ARMS)
    assert all(row["makespan_s"] > 0 for row in rows["simulated"])
    assert "Simulated with" in section(document)

    # Simulated again with the same profile it says the same, in a file of its own.
    (path,) = (tmp_path / "results").glob("*.json")
    before = path.read_bytes()
    assert rollout(replace(settings, simulate=str(path), out=str(tmp_path / "again")), True) == 0
    assert the_document(tmp_path / "again") == document
    assert rollout(replace(settings, simulate=str(path), out=""), True) == 0
    assert path.read_bytes() == before


WHATS = ("workload", "arm", "bound", "profile", "simulated")


def test_what_service_adds_enters_the_profile(model: Path, tmp_path: Path) -> None:
    settings = CalibrateSettings(
        device="cpu",
        model=str(model),
        ranks=2,
        backend=INPROCESS,
        batch="1,2",
        prompts="1",
        context="8",
        rows="4",
        layouts="TP,DOP",
        reps=2,
        warmup=1,
        streams="1,2",
        # On a loaded machine the second stream begins late.
        stream_tokens=600,
        commit="abc",
        out=str(tmp_path / "profile.json"),
        results=str(tmp_path / "results"),
    )
    assert calibrate(settings, False) == 0
    document = the_document(tmp_path / "results")
    served = [row for row in document["rows"] if "served" in row]
    assert {(row["served"], row["streams"]) for row in served} == {
        (layout, streams) for layout in ("TP", "DOP") for streams in (1, 2)
    }
    assert all(len(row["ms"]) == 2 for row in served)
    written = HardwareProfile.from_json((tmp_path / "profile.json").read_text())
    assert min(written.served_step_s, written.served_token_s) >= 0
    assert {"served/TP", "served/DOP"} <= set(written.provenance.residuals)
    assert "Service adds" in section(document)
