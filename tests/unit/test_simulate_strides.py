"""Times of many steps at once: the closed form is the sum, whatever the shape of the cost."""

import random

import pytest

from splash_core.cost.load import Load, Rows
from splash_core.cost.step_kind import StepKind
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS
from splash_core.simulate.machine import BatchRow
from splash_core.simulate.pricing import DecodeLoads
from splash_core.simulate.strides import Stride
from splash_core.spec.catalogue import named_spec
from tests.support.policy_cases import cost_model


def kinked(step: int) -> float:
    """Convex, with two kinks, as maxima of linear stage times are."""
    return 1.0 + max(0.5, 0.01 * step, 0.05 * step - 12.0)


@pytest.mark.parametrize("steps", [1, 2, 3, 50, 51, 400, 1000])
def test_ends_are_sums_of_steps(steps: int) -> None:
    stride = Stride.of(7.0, steps, kinked, extra_s=0.25)
    assert stride.steps == steps
    now = 7.25
    for step in range(steps):
        now += kinked(step)
        assert stride.end(step + 1) == pytest.approx(now, rel=1e-12)
        assert stride.ended_by(now) == step + 1
        assert stride.first_end_from(now) == step + 1
        assert stride.ended_by(now - 0.3) == step
        assert stride.first_end_from(now - 0.3) == step + 1
    assert stride.first_end_from(float("inf")) == steps
    assert len(stride.stretches) < 25


def test_durations_cover_the_steps_asked_for() -> None:
    stride = Stride.of(0.0, 400, kinked)
    parts = stride.durations(30, 333)
    assert sum(steps for steps, _ in parts) == 303
    total = sum(steps * step_s for steps, step_s in parts)
    assert total == pytest.approx(sum(kinked(step) for step in range(30, 333)), rel=1e-12)


@pytest.mark.parametrize("top_k", [None, 300])
def test_later_loads_are_those_of_longer_contexts(top_k: int | None) -> None:
    dice = random.Random(3)
    rows = [BatchRow(key, 1, dice.randint(1, 280), dice.randint(0, 3), 1) for key in range(40)]
    rows += [BatchRow(key, 1, dice.randint(300, 900), dice.randint(0, 3), 1) for key in range(40)]
    loads = DecodeLoads(rows, num_ranks=4, top_k=top_k)
    for step in (0, 1, 19):
        items = [Rows(1, row.context + step, row.owner) for row in rows]
        assert loads.at(step) == Load.of(items, num_ranks=4, top_k=top_k)


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2"])
@pytest.mark.parametrize("layout", STANDARD_LAYOUTS)
def test_the_cost_of_decode_steps_is_summed_exactly(name: str, layout: str) -> None:
    model = cost_model(named_spec(name), gpu="h200", dtype="fp8", ranks=8)
    rows = [BatchRow(key, 1, 2100 + 997 * key, key % 5, 1) for key in range(24)]
    loads = DecodeLoads(rows, num_ranks=8, top_k=model.top_k)

    def cost(step: int) -> float:
        return model.predict(RULES[layout], loads.at(step), kind=StepKind.REPLAYED).step_s  # type: ignore[index]

    stride = Stride.of(0.0, 600, cost)
    assert stride.end(600) == pytest.approx(sum(map(cost, range(600))), rel=1e-11)
    assert len(stride.stretches) < 40
