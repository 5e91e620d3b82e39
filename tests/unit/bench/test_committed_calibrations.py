"""The calibrations in docs/results: what they claim follows from their rows, poisoned warm-up or not."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.bench.calibrate_fit import concluded, model_of, profile_of, steps_of
from splash_core.cost.accuracy import Accuracy
from splash_core.cost.profile import HardwareProfile

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted((ROOT / "docs/results").glob("calibrate-*.json"))
PROFILES = sorted((ROOT / "docs/profiles").glob("*.json"))


def poisoned(document: dict[str, Any], count: int) -> dict[str, Any]:
    """Of `count` steps all repetitions that warm up a thousand times as long."""
    worse = copy.deepcopy(document)
    steps = [row for row in worse["rows"] if "ms" in row and "phase" in row]
    for row in steps[:: len(steps) // count][:count]:
        row["ms"][: row["warmup"]] = [1e3 * ms for ms in row["ms"][: row["warmup"]]]
    return worse


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_ten_poisoned_warm_up_samples_change_no_choice(path: Path) -> None:
    document = json.loads(path.read_text())
    fitted, worse = concluded(document), concluded(poisoned(document, 10))
    assert worse["profile"] == fitted["profile"]
    assert worse["accuracy"] == fitted["accuracy"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_what_is_claimed_follows_from_the_rows(path: Path) -> None:
    document = json.loads(path.read_text())
    again = concluded(document)
    assert again["accuracy"]["holds"] == document["accuracy"]["holds"]
    assert {one["batch"] for one in again["accuracy"]["choices"]} == {
        one["batch"] for one in document["accuracy"]["choices"]
    }


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_is_of_a_document(path: Path) -> None:
    profile = HardwareProfile.from_json(path.read_text())
    assert profile in [profile_of(json.loads(document.read_text())) for document in DOCUMENTS]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_holds_for_what_other_runs_measured(path: Path) -> None:
    profile = HardwareProfile.from_json(path.read_text())
    others = [
        document
        for document in map(json.loads, (document.read_text() for document in DOCUMENTS))
        if document["profile"]["name"] == profile.name and profile_of(document) != profile
    ]
    steps = [
        replace(step, batch=f"{step.batch}, {document['date']}", held_out=True)
        for document in others
        for step in steps_of(document)
    ]
    model = replace(model_of(others[0]), profile=profile)
    assert Accuracy.of(model, steps).holds


def test_there_are_some() -> None:
    assert DOCUMENTS
    assert PROFILES
