"""What a switch exposed is measured against plain steps of the same shape."""

import pytest

from splash_core.ids import Epoch, SeqId, StepId
from splash_core.layout.layout import Layout
from splash_core.leader.pace import StepPace
from splash_core.scheduling.step import SequenceStep, StepPlan
from splash_core.switch.manifest import Primitive, SwitchManifest


def _plan(rows: int, *, switching: bool = False) -> StepPlan:
    manifest = SwitchManifest(
        layout_from=Layout.TP,
        layout_to=Layout.DP,
        epoch=Epoch(1),
        weights=Primitive.ALL_GATHER,
        kv=Primitive.DISCARD,
    )
    return StepPlan(
        step=StepId(1),
        epoch=Epoch(1),
        layout=Layout.DP,
        sequences=tuple(
            SequenceStep(seq=SeqId(i + 1), start=9, tokens=(1,), sample=True) for i in range(rows)
        ),
        manifest=manifest if switching else None,
    )


def test_exposed_is_the_excess_over_the_median_of_the_last_eight_of_that_shape() -> None:
    pace = StepPace()
    for step_s in (9.0, 9.0, *[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]):
        pace.record(_plan(2), step_s)
    pace.record(_plan(3), 100.0)
    pace.record(_plan(2, switching=True), 50.0)
    assert pace.exposed_s(_plan(2, switching=True), 10.0) == pytest.approx(5.5)
    assert pace.exposed_s(_plan(2, switching=True), 1.0) == 0.0
    assert pace.exposed_s(_plan(4, switching=True), 1.5) == 1.5  # no step of that shape was seen


def test_recent_steps_are_those_of_the_present_layout() -> None:
    pace = StepPace()
    assert pace.recent_s is None
    pace.record(_plan(1), 1.0)
    pace.record(_plan(2), 3.0)
    assert pace.recent_s == 2.0
    pace.forget()
    assert pace.recent_s is None
    assert pace.exposed_s(_plan(1, switching=True), 3.0) == 2.0  # shapes are remembered over a switch
