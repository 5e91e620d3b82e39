"""A document of another version is refused with both and the remedy; a new shape is a new version."""

import dataclasses
import hashlib
import json
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from services.bench.document import DOCUMENT_VERSION, measured_here, read_document, read_earlier
from splash_core.cost.model import CostModel
from splash_core.cost.profile import PROFILE_VERSION, HardwareProfile, analytical_profile
from splash_core.errors import ConfigError
from splash_core.policy.bundle import BUNDLE_VERSION, Evaluation, replay
from splash_core.spec.hardware import named_gpu

BUNDLE_SHAPES = {2: "084da2d2ce8b5e70", 3: "f2c1d4612fd7211d"}
"""What bundles of a version hold. Where this test fails, raise `BUNDLE_VERSION` and add its shape."""


def shape(kind: Any) -> Any:
    """Names and types of everything in a type, as JSON values."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: shape(hints[field.name]) for field in dataclasses.fields(kind)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if arguments := typing.get_args(kind):
        return [str(typing.get_origin(kind) or types.UnionType), *map(shape, arguments)]
    return str(getattr(kind, "__name__", kind))


def test_what_bundles_hold_changes_with_their_version_only() -> None:
    text = json.dumps([shape(Evaluation), shape(CostModel)], sort_keys=True)
    assert BUNDLE_SHAPES[BUNDLE_VERSION] == hashlib.sha256(text.encode()).hexdigest()[:16]


def read_profile_of(version: object, folder: Path) -> None:
    del folder
    values = json.loads(analytical_profile(named_gpu("h200"), dtype="bf16").to_json())
    HardwareProfile.from_json(json.dumps({**values, "version": version}))


def read_bundle_of(version: object, folder: Path) -> None:
    del folder
    replay({"splash_bundle": version})


def read_results_of(version: object, folder: Path) -> None:
    path = folder / "results.json"
    values = measured_here("sweep", settings={}, rows=[]).to_json()
    path.write_text(json.dumps({**values, "version": version}))
    read_document(path, where=str(path), command="splash bench sweep")


@pytest.mark.parametrize(
    ("read", "reads", "remedy"),
    [
        (read_profile_of, PROFILE_VERSION, "run `splash calibrate` again"),
        (read_bundle_of, BUNDLE_VERSION, "splash layout explain --bundle"),
        (read_results_of, DOCUMENT_VERSION, "measure again with `splash bench sweep`"),
    ],
)
@pytest.mark.parametrize("other", [-1, 1])
def test_another_version_is_refused_with_both_and_the_remedy(
    tmp_path: Path, read: Any, reads: int, remedy: str, other: int
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(reads + other, tmp_path)
    told = str(refused.value)
    assert f"is of version {reads + other}, and version {reads} is read here; " in told
    assert remedy in told
    with pytest.raises(ConfigError, match=f"of version True, and version {reads} is read here"):
        read(True, tmp_path)


def test_results_that_name_no_version_are_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    values = measured_here("sweep", settings={}, rows=[]).to_json()
    del values["version"]
    path.write_text(json.dumps(values))
    assert read_earlier(path, flag="--x", bench="sweep", command="c") == values
    for wrong in ("[]", "{", '{"bench": "sweep"}', json.dumps({**values, "bench": "serve"})):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=f"^--x {path}.*`c`"):
            read_earlier(path, flag="--x", bench="sweep", command="c")
