"""`--profile`: leaders and `splash plan` predict with it, and refuse one of another group by name."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.commands.plan import app
from splash_core.config import GroupSettings
from splash_core.cost.measured_on import described, doubt, layer_shape, warning
from splash_core.cost.profile import HardwareProfile, Provenance, analytical_profile
from splash_core.errors import ConfigError
from splash_core.leader.build import draw_blueprint
from splash_core.policy.config import PolicyConfig
from splash_core.policy.snapshot import Phase
from splash_core.policy.state import PolicyState
from splash_core.policy.switching import decide
from splash_core.spec.catalogue import named_spec
from splash_core.spec.hardware import named_gpu
from splash_core.spec.model import ModelSpec
from tests.support.policy_cases import cost_model, decoding, snapshot


def measured(dtype: str = "fp32", *, gpu: str = "cpu", ranks: int = 2) -> HardwareProfile:
    profile = analytical_profile(named_gpu(gpu), dtype=dtype)
    return replace(
        profile, name="mine", ranks=ranks, flops=12e9, overlap=0.5, provenance=Provenance(source="measured")
    )


def written(tmp_path: Path, profile: HardwareProfile) -> str:
    path = tmp_path / "profile.json"
    path.write_text(profile.to_json())
    return str(path)


def settings(tiny_v3: Path, profile: str) -> GroupSettings:
    return GroupSettings(model=str(tiny_v3), page_size=8, kv_bytes=1 << 14, profile=profile)


@pytest.mark.parametrize("phase", list(Phase))
def test_a_leader_predicts_with_it(tiny_v3: Path, tmp_path: Path, phase: Phase) -> None:
    blueprint = draw_blueprint(settings(tiny_v3, written(tmp_path, measured())), phase)
    assert blueprint.cost_model().profile == measured()
    default = draw_blueprint(settings(tiny_v3, ""), phase).cost_model().profile
    assert default == analytical_profile(named_gpu("cpu"), dtype="fp32")


def test_the_budget_of_a_shared_link_bounds_it_too(tiny_v3: Path, tmp_path: Path) -> None:
    asked = replace(settings(tiny_v3, written(tmp_path, measured())), link_bytes_per_s=1e6)
    blueprint = draw_blueprint(asked, Phase.DECODE)
    assert blueprint.cost_model().profile.link_bps == blueprint.shared_link_bps == 1e6


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (measured("fp64"), "profile mine is for dtype fp64, the group has dtype fp32"),
        (measured(ranks=4), "for ranks 4, the group has ranks 2.*splash calibrate --ranks 2"),
        (measured("bf16", gpu="h200"), "for device cuda, the group has device cpu"),
    ],
)
def test_one_of_another_group_is_refused(
    tiny_v3: Path, tmp_path: Path, profile: HardwareProfile, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        draw_blueprint(settings(tiny_v3, written(tmp_path, profile)), Phase.DECODE)


def test_files_that_are_none_are_refused_by_name(tiny_v3: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json: No such file.*splash calibrate --out"):
        draw_blueprint(settings(tiny_v3, str(tmp_path / "absent.json")), Phase.DECODE)
    twice = tmp_path / "twice.json"
    twice.write_text(measured().to_json().replace('"dtype"', '"device": "cuda",\n  "dtype"'))
    with pytest.raises(ConfigError, match=r"twice\.json: profile is not JSON: key 'device' stands twice"):
        draw_blueprint(settings(tiny_v3, str(twice)), Phase.DECODE)
    old = tmp_path / "old.json"
    old.write_text(json.dumps({**json.loads(measured().to_json()), "version": 1}))
    with pytest.raises(
        ConfigError, match=r"old\.json: the profile is of version 1, .*`splash calibrate` again"
    ):
        draw_blueprint(settings(tiny_v3, str(old)), Phase.DECODE)


def of_shape(spec: ModelSpec, profile: HardwareProfile) -> HardwareProfile:
    """As if it had been measured on a model."""
    seen = Provenance(source="measured", model=f"{spec.name}, 2 layers", shape=layer_shape(spec))
    return replace(profile, provenance=seen)


class TestOtherModels:
    """A profile counts for layers of one shape; of another one it is taken, and said to be so."""

    v3 = named_spec("deepseek-v3")

    def test_its_own_model_is_not_doubted_in_however_many_layers(self) -> None:
        mine = of_shape(self.v3, measured())
        assert doubt(mine, replace(self.v3, name="renamed", layers=4)) == warning(mine, self.v3) == ""
        assert described(mine, self.v3) == "mine (measured)"
        assert HardwareProfile.from_json(mine.to_json()) == mine

    def test_another_shape_is_named_with_what_differs(self) -> None:
        mine = of_shape(self.v3, measured())
        other = replace(self.v3, name="smaller", hidden=2048, heads=16)
        differing = "hidden 7168 for 2048, heads 128 for 16"
        assert doubt(mine, other) == f"measured on deepseek-v3, 2 layers: {differing}"
        remedy = r"profile mine was measured on .*`splash calibrate` measured on this model"
        assert re.match(remedy, warning(mine, other))

    @pytest.mark.parametrize(
        ("model", "words"), [("smollm2-mla, 6 layers", "on smollm2-mla, whose"), ("", "does not name")]
    )
    def test_without_dimensions_its_name_counts(self, model: str, words: str) -> None:
        old = replace(measured(), provenance=Provenance(source="measured", model=model))
        assert words in doubt(old, self.v3)
        assert doubt(old, replace(self.v3, name="smollm2-mla")) == "" or not model

    def test_an_analytical_profile_is_of_no_model(self) -> None:
        assert doubt(analytical_profile(named_gpu("h200"), dtype="bf16"), self.v3) == ""

    def test_decisions_and_plans_say_so(self, tmp_path: Path) -> None:
        mine = of_shape(self.v3, measured("bf16", gpu="h200", ranks=8))
        model = replace(cost_model(), profile=of_shape(self.v3, measured()))
        decision, _ = decide(snapshot(decoding(4, 100)), model, PolicyConfig(), PolicyState())
        assert "measured on deepseek-v3, 2 layers: hidden 7168 for 576" in decision.inputs["profile"]
        flags = ("--model", "deepseek-v2", "--gpu", "h200", "--ranks", "8", "--dtype", "bf16", "--json")
        told = CliRunner().invoke(app, [*flags, "--profile", written(tmp_path, mine)])
        assert "hidden 7168 for 5120" in json.loads(told.stdout)["profile"]
        assert told.stderr.startswith("warning: profile mine was measured on deepseek-v3")


class TestPlan:
    flags = ("--model", "deepseek-v3", "--gpu", "h200", "--ranks", "16", "--dtype", "bf16", "--json")

    def test_it_predicts_regimes_with_it(self, tmp_path: Path) -> None:
        slow = of_shape(
            named_spec("deepseek-v3"), replace(measured("bf16", gpu="h200", ranks=16), link_bps=1e6)
        )
        plain = json.loads(CliRunner().invoke(app, self.flags).stdout)
        path = written(tmp_path, slow)
        planned = json.loads(CliRunner().invoke(app, [*self.flags, "--profile", path]).stdout)
        assert (plain["profile"], planned["profile"]) == ("h200 (analytical)", "mine (measured)")
        assert planned["regimes"] != plain["regimes"]
        assert planned["switches"] == plain["switches"]

    def test_one_of_another_device_is_refused(self, tmp_path: Path) -> None:
        path = written(tmp_path, measured("bf16", gpu="h200", ranks=16))
        flags = [*self.flags[:3], "cpu", *self.flags[4:], "--profile", path]
        result = CliRunner().invoke(app, flags)
        assert isinstance(result.exception, ConfigError)
        assert "device cuda, the group has device cpu" in str(result.exception)
