"""The calibrations in docs/results: what they claim follows from their rows, poisoned warm-up or not."""

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from services.bench.calibrate_fit import concluded, model_of, profile_of, steps_of
from splash_core.cost.accuracy import Accuracy
from splash_core.cost.profile import HardwareProfile

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted((ROOT / "docs/results").glob("calibrate-*.json"))
PROFILES = sorted((ROOT / "docs/profiles").glob("*.json"))


@cache
def fitted_again(path: Path) -> dict[str, Any]:
    """A document with the fit that its rows give now: seconds for each."""
    return concluded(json.loads(path.read_text()))


def poisoned(document: dict[str, Any], count: int) -> dict[str, Any]:
    """Of `count` steps all repetitions that warm up a thousand times as long."""
    worse = copy.deepcopy(document)
    steps = [row for row in worse["rows"] if "ms" in row and "phase" in row]
    for row in steps[:: len(steps) // count][:count]:
        row["ms"][: row["warmup"]] = [1e3 * ms for ms in row["ms"][: row["warmup"]]]
    return worse


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_ten_poisoned_warm_up_samples_change_no_choice(path: Path) -> None:
    fitted = fitted_again(path)
    worse = concluded(poisoned(json.loads(path.read_text()), 10))
    assert worse["profile"] == fitted["profile"]
    assert worse["accuracy"] == fitted["accuracy"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_what_is_claimed_follows_from_the_rows(path: Path) -> None:
    document = json.loads(path.read_text())
    again = fitted_again(path)
    assert again["accuracy"]["holds"] == document["accuracy"]["holds"]
    assert {one["batch"] for one in again["accuracy"]["choices"]} == {
        one["batch"] for one in document["accuracy"]["choices"]
    }


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_is_of_a_document(path: Path) -> None:
    profile = HardwareProfile.from_json(path.read_text())
    assert profile in [profile_of(json.loads(document.read_text())) for document in DOCUMENTS]


def test_a_profile_holds_for_what_other_runs_measured() -> None:
    beside = {path.stem: others for path in PROFILES if (others := other_runs(path))}
    assert "smollm2-mla-cpu-fp32-t2" in beside, "of it there are several runs"
    for name, others in beside.items():
        assert holds_for(HardwareProfile.from_json((ROOT / f"docs/profiles/{name}.json").read_text()), others)


def other_runs(path: Path) -> list[dict[str, Any]]:
    """Documents of the same model, with as many layers, from which another profile came."""
    profile = HardwareProfile.from_json(path.read_text())
    documents = map(json.loads, (document.read_text() for document in DOCUMENTS))
    found = [(document, profile_of(document)) for document in documents]
    return [
        document
        for document, other in found
        if other.name == profile.name
        and other.provenance.model == profile.provenance.model
        and other != profile
    ]


def holds_for(profile: HardwareProfile, others: list[dict[str, Any]]) -> bool:
    """Whether a profile predicts and chooses well where it was not made."""
    steps = [
        replace(step, batch=f"{step.batch}, {document['date']}", held_out=True)
        for document in others
        for step in steps_of(document)
    ]
    model = replace(model_of(others[0]), profile=profile)
    return Accuracy.of(model, steps).holds


def test_there_are_some() -> None:
    assert DOCUMENTS
    assert PROFILES
