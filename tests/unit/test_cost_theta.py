"""A constant of θ is declared once, and whatever reads, fits or shows profiles knows it from there."""

import json
from dataclasses import fields, replace

import pytest

from services.bench.calibrate_tables import calibrate_tables
from splash_core.cost.constants import APART, OVERHEADS, RATES, names_of, value_of, with_values
from splash_core.cost.fit import first_guess
from splash_core.cost.profile import HardwareProfile
from splash_core.cost.theta import Count, Given, Link, Overhead, Part, Rate, constants_of
from tests.support.policy_cases import cost_model

CONSTANTS = constants_of(HardwareProfile)
PROFILE = cost_model().profile
FITTED = [name for name, constant in CONSTANTS.items() if isinstance(constant, Rate | Overhead)]
SHOWN = {
    name: constant for name, constant in CONSTANTS.items() if isinstance(constant, Rate | Overhead | Part)
}


def test_every_number_of_a_profile_is_declared_as_a_constant() -> None:
    numbers = {
        item.name for item in fields(HardwareProfile) if isinstance(getattr(PROFILE, item.name), int | float)
    }
    assert numbers == set(CONSTANTS)
    assert {type(constant) for constant in CONSTANTS.values()} == {Rate, Overhead, Part, Link, Given, Count}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_read_as_it_was_written(name: str) -> None:
    value = 0.25 if isinstance(CONSTANTS[name], Part) else 7
    changed = replace(PROFILE, **{name: value})
    assert getattr(HardwareProfile.from_json(changed.to_json()), name) == value


@pytest.mark.parametrize("name", FITTED)
def test_a_fitted_constant_may_change_and_begins_above_nothing(name: str) -> None:
    assert name in names_of(PROFILE)
    assert value_of(with_values(PROFILE, {name: 3.5}), name) == 3.5
    assert value_of(first_guess(cost_model(), []), name) > 0


def test_no_other_constant_is_fitted() -> None:
    assert set(names_of(replace(PROFILE, collectives={}))) == {*RATES, *OVERHEADS, APART} == {*FITTED, APART}


def test_tables_show_each_fitted_constant() -> None:
    accuracy = {"groups": [], "choices": [], "holds": True}
    document = {"accuracy": accuracy, "profile": json.loads(PROFILE.to_json()), "rows": []}
    lines = calibrate_tables(document).splitlines()
    for constant in SHOWN.values():
        assert sum(line.startswith(f"| {constant.shown} |") for line in lines) == 1
