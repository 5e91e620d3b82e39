"""What service adds to a step is found from streams, and is the same for all layouts."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash_core.cost.model import CostModel
from splash_core.cost.precision import named_precision
from splash_core.cost.profile import HardwareProfile, analytical_profile
from splash_core.cost.served import ServedStreams, predicted_s, with_service
from splash_core.cost.step_kind import StepKind
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS
from splash_core.spec.catalogue import named_spec
from splash_core.spec.hardware import named_gpu

MODEL = CostModel(
    spec=replace(named_spec("deepseek-v3"), layers=4),
    precision=named_precision("fp32"),
    profile=analytical_profile(named_gpu("cpu"), dtype="fp32"),
    num_ranks=2,
)
STREAMS = (1, 4, 16, 64)
LAUNCHED = StepKind.LAUNCHED


def served_by(profile: HardwareProfile, *, noise: float = 0.0) -> list[ServedStreams]:
    """As a host with these constants would measure."""
    model = replace(MODEL, profile=profile)
    return [
        ServedStreams(
            layout=layout,
            streams=count,
            context=32,
            seconds=model.predict(RULES[layout], replace(EMPTY, streams=count).load(2), kind=LAUNCHED).step_s
            * (1 + noise * (-1) ** index),
        )
        for index, (layout, count) in enumerate(itertools.product(STANDARD_LAYOUTS, STREAMS))
    ]


EMPTY = ServedStreams(layout=STANDARD_LAYOUTS[0], streams=1, context=32, seconds=1.0)


@given(step_ms=st.floats(0.0, 50.0), token_ms=st.floats(0.0, 5.0))
def test_what_was_added_is_found(step_ms: float, token_ms: float) -> None:
    truth = replace(MODEL.profile, served_step_s=step_ms / 1e3, served_token_s=token_ms / 1e3)
    found = with_service(MODEL, served_by(truth))
    assert found.served_step_s == pytest.approx(truth.served_step_s, abs=1e-7)
    assert found.served_token_s == pytest.approx(truth.served_token_s, abs=1e-7)


def test_all_else_of_the_profile_stays_and_errors_are_told() -> None:
    truth = replace(MODEL.profile, served_step_s=0.01, served_token_s=0.001)
    found = with_service(MODEL, served_by(truth, noise=0.02))
    zero = {"served_step_s": 0.0, "served_token_s": 0.0, "provenance": MODEL.profile.provenance}
    assert replace(found, **zero) == MODEL.profile  # type: ignore[arg-type]
    assert set(found.provenance.residuals) == {f"served/{layout}" for layout in STANDARD_LAYOUTS}
    assert all(0 < error < 0.05 for error in found.provenance.residuals.values())


def test_steps_that_are_faster_than_predicted_add_nothing() -> None:
    faster = [replace(one, seconds=one.seconds / 2) for one in served_by(MODEL.profile)]
    found = with_service(MODEL, faster)
    assert (found.served_step_s, found.served_token_s) == (0.0, 0.0)


def test_a_profile_with_them_is_fitted_anew_and_read_back() -> None:
    truth = replace(MODEL.profile, served_step_s=0.01, served_token_s=0.001)
    again = with_service(replace(MODEL, profile=truth), served_by(truth))
    assert again.served_step_s == pytest.approx(0.01)
    assert HardwareProfile.from_json(again.to_json()) == again
    assert with_service(MODEL, []) == MODEL.profile


def test_no_layout_gains_by_it() -> None:
    truth = replace(MODEL, profile=replace(MODEL.profile, served_step_s=0.01, served_token_s=0.001))
    for layout in STANDARD_LAYOUTS:
        one = replace(EMPTY, layout=layout, streams=16)
        assert predicted_s(truth, one) - predicted_s(MODEL, one) == pytest.approx(0.01 + 16 * 0.001)
