"""The slow-down by what hides is found from pairs of steps, and is none of what is exposed."""

import math
from dataclasses import replace

import pytest

from splash_core.cost.interference import Beside, with_interference
from splash_core.cost.precopy import copying_s
from splash_core.cost.profile import Provenance
from splash_core.cost.switch import SwitchBytes, switch_cost
from tests.support.policy_cases import cost_model

PROFILE = replace(cost_model().profile, provenance=Provenance(source="measured", note="fitted"))


def beside(interference: float, *, transfer_s: float, plain_s: float = 1.0, noise: float = 0.0) -> Beside:
    """Pairs as a host with this constant shows them; one of three is disturbed."""
    hidden = min(transfer_s, plain_s)
    slow_s = transfer_s - hidden + hidden * interference
    pairs = [(plain_s, plain_s + slow_s), (plain_s + noise, plain_s + slow_s), (plain_s, plain_s + slow_s)]
    return Beside(transfer_s=transfer_s, pairs=tuple(pairs))


@pytest.mark.parametrize("transfer_s", [0.05, 0.5, 1.0, 3.0], ids=["short", "half", "equal", "longer"])
@pytest.mark.parametrize("interference", [0.0, 0.3, 1.0, 1.8])
def test_the_constant_is_found_whatever_is_exposed(interference: float, transfer_s: float) -> None:
    measured = [beside(interference, transfer_s=transfer_s, noise=0.4)]
    assert with_interference(PROFILE, measured).interference == pytest.approx(interference)


def test_each_kind_of_step_counts_alike() -> None:
    many = replace(beside(0.2, transfer_s=0.5), pairs=beside(0.2, transfer_s=0.5).pairs * 9)
    found = with_interference(PROFILE, [many, beside(0.6, transfer_s=2.0)])
    assert found.interference == pytest.approx(0.4)
    assert found.provenance.note == "fitted; interference of 30 pairs of steps"


def test_a_step_that_is_faster_beside_a_transfer_is_not_slowed_down() -> None:
    assert with_interference(PROFILE, [beside(-0.5, transfer_s=0.5)]).interference == 0.0


@pytest.mark.parametrize("transfer_s", [1e-7, 0.049])
def test_a_transfer_too_short_to_tell_leaves_the_profile(transfer_s: float) -> None:
    assert with_interference(PROFILE, []) is PROFILE
    assert with_interference(PROFILE, [beside(900.0, transfer_s=transfer_s)]) is PROFILE
    both = [beside(900.0, transfer_s=transfer_s), beside(0.5, transfer_s=0.5)]
    assert with_interference(PROFILE, both).interference == pytest.approx(0.5)


def test_prices_take_it() -> None:
    profile = replace(with_interference(PROFILE, [beside(0.25, transfer_s=0.5)]), collective_latency_s=0.0)
    size = int(profile.link_bps)
    assert copying_s(profile, size, ordinary_s=4.0) == pytest.approx(0.25)
    overlapped = switch_cost(profile, SwitchBytes(weights=0, kv=size), layers=4, step_s=16.0)
    assert overlapped.slowed_s == pytest.approx(3 * 0.25)
    assert math.isclose(overlapped.stall_s, 1.0 + 3 * 0.25)
