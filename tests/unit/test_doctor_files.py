"""`splash doctor` on the files of `--policy` and `--profile`: valid, of whom, how old, of which model."""

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from services.doctor.files import policy, profile
from services.doctor.settings import DoctorSettings
from services.doctor.verdicts import CheckResult, CheckVerdict
from splash_core.cost.measured_on import layer_shape
from splash_core.cost.profile import HardwareProfile, Provenance, analytical_profile
from splash_core.spec.hardware import named_gpu
from splash_core.spec.model import ModelSpec

DAY = datetime.date(2026, 11, 30)


def said(findings: list[CheckResult]) -> list[tuple[CheckVerdict, str]]:
    assert all(finding.remedy for finding in findings if finding.verdict is not CheckVerdict.PASS)
    return [(finding.verdict, finding.detail) for finding in findings]


def of_policy(tmp_path: Path, text: str, **settings: str) -> list[tuple[CheckVerdict, str]]:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return said(list(policy(DoctorSettings(policy=str(path), **settings))))  # type: ignore[arg-type]


def test_what_is_not_named_is_not_looked_at() -> None:
    assert [
        *policy(DoctorSettings()),
        *policy(DoctorSettings(policy="off")),
        *profile(DoctorSettings()),
    ] == []


def test_a_valid_policy_passes_and_it_is_said_for_whom(tmp_path: Path) -> None:
    ((verdict, detail),) = of_policy(tmp_path, "[all]\nmargin = 0.1\n[group.decode-0]\nshadow = true")
    assert verdict is CheckVerdict.PASS
    assert detail.endswith("for all groups, decode-0")
    ((_, detail),) = of_policy(tmp_path, "")
    assert detail.endswith("for nobody: all defaults")


def test_a_policy_that_is_none_or_that_no_group_can_follow_fails(tmp_path: Path) -> None:
    ((verdict, detail),) = of_policy(tmp_path, "[all]\nmargni = 1")
    assert (verdict, "margni: unknown key" in detail) == (CheckVerdict.FAIL, True)
    ((verdict, detail),) = of_policy(tmp_path, '[decode]\npin = "CP"', layouts="TP,DP")
    assert (verdict, detail) == (CheckVerdict.FAIL, "pin: decode-0 does not offer CP; it offers TP, DP")
    (finding,) = policy(DoctorSettings(policy=str(tmp_path / "absent.toml")))
    assert (finding.verdict, finding.remedy) == (CheckVerdict.FAIL, "give off, auto or a TOML file")


def test_what_has_no_effect_is_a_warning(tmp_path: Path) -> None:
    text = '[decode]\nallowed = ["TP", "CP"]\n[group.decode-1]\nshadow = true'
    warned = [(CheckVerdict.WARN, "allowed: CP without effect for decode-0")]
    stranger = [(CheckVerdict.WARN, "group.decode-1: `splash up` starts no decode-1")]
    assert of_policy(tmp_path, text, layouts="TP,DP")[:2] == warned + stranger
    # A cluster has groups of its own, and its router tells of strangers.
    assert of_policy(tmp_path, text, layouts="TP,DP", admin="http://127.0.0.1:1")[:-1] == warned


def measured(spec: ModelSpec, *, date: str = "2026-11-18T10:00:00+00:00") -> HardwareProfile:
    seen = Provenance(
        source="measured",
        model=f"{spec.name}, 2 layers",
        date=date,
        commit="abc1234",
        shape=layer_shape(spec),
    )
    theta = analytical_profile(named_gpu("cpu"), dtype="fp32")
    return replace(theta, name="mine", ranks=2, provenance=seen)


def of_profile(tmp_path: Path, theta: HardwareProfile, **settings: object) -> list[tuple[CheckVerdict, str]]:
    path = tmp_path / "profile.json"
    path.write_text(theta.to_json())
    asked = DoctorSettings(profile=str(path), **settings)  # type: ignore[arg-type]
    return said(list(profile(asked, today=DAY)))


def test_a_profile_of_these_groups_and_this_model_passes_with_its_origin(
    tmp_path: Path, tiny_v3: Path
) -> None:
    spec = ModelSpec.from_checkpoint(tiny_v3)
    ((verdict, detail),) = of_profile(tmp_path, measured(spec), model=str(tiny_v3))
    assert verdict is CheckVerdict.PASS
    assert detail == f"mine: measured, on {spec.name}, 2 layers, at commit abc1234, of 2026-11-18"


def test_one_of_another_shape_or_long_ago_is_a_warning(tmp_path: Path, tiny_v3: Path) -> None:
    wide = replace(ModelSpec.from_checkpoint(tiny_v3), name="wide", hidden=4096)
    told = of_profile(tmp_path, measured(wide, date="2026-08-01T00:00:00+00:00"), model=str(tiny_v3))
    assert [verdict for verdict, _ in told] == [CheckVerdict.PASS, CheckVerdict.WARN, CheckVerdict.WARN]
    assert told[1][1].startswith("measured on wide, 2 layers: hidden 4096 for ")
    assert told[2][1] == "121 days old"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"decode_ranks": 4}, "ranks 2, the group has ranks 4"),
        ({"dtype": "fp64"}, "dtype fp32, the group has"),
    ],
)
def test_one_of_other_groups_fails(
    tmp_path: Path, tiny_v3: Path, settings: dict[str, object], words: str
) -> None:
    ((verdict, detail),) = of_profile(tmp_path, measured(ModelSpec.from_checkpoint(tiny_v3)), **settings)
    assert (verdict, words in detail) == (CheckVerdict.FAIL, True)
