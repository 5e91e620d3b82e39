"""Predicted against measured steps: when the alarm sounds, what is compared, and what is told."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from splash_core.ids import Epoch, SeqId, StepId
from splash_core.layout.layout import Layout
from splash_core.leader.forecasts import Forecasts
from splash_core.policy.decision import Cause, Decision
from splash_core.policy.drift import DriftChange, DriftRules, DriftState, forecast, observe
from splash_core.policy.snapshot import Phase
from splash_core.scheduling.step import SequenceStep, StepPlan
from splash_core.switch.precopy import PrecopyBatch
from tests.support.policy_cases import cost_model, decoding, prompts, snapshot

MODEL = cost_model()
RULES = DriftRules(window=8, least=4, band=1.5)


def seen(
    ratios: list[float], *, calibrated: bool, layout: Layout = Layout.DP, state: DriftState | None = None
) -> tuple[DriftState, list[DriftChange]]:
    state, changes = state or DriftState(), list[DriftChange]()
    for ratio in ratios:
        state, change = observe(
            state,
            layout=layout,
            predicted_s=0.01,
            measured_s=0.01 * ratio,
            calibrated=calibrated,
            rules=RULES,
        )
        changes += [] if change is None else [change]
    return state, changes


class TestDetector:
    def test_a_calibrated_profile_promises_times(self) -> None:
        assert seen([1.4] * 20, calibrated=True)[1] == []
        state, (change,) = seen([1.6] * 20, calibrated=True)
        assert (change.drifting, change.layout, change.reference) == (True, Layout.DP, 1.0)
        assert state.drifting == {Layout.DP}
        assert "calibrate this deployment again" in change.words(RULES)

    def test_an_analytical_one_sets_its_reference_by_its_first_steps(self) -> None:
        assert seen([3.0] * 20, calibrated=False)[1] == []
        state, changes = seen([3.0] * 8 + [5.0] * 8, calibrated=False)
        assert [change.drifting for change in changes] == [True]
        assert changes[0].reference == 3.0
        words = changes[0].words(RULES)
        assert "again" not in words
        assert "its profile, which nobody has measured," in words
        assert "`splash calibrate`" in words
        # Another layout that keeps to the prediction of the first alarms by itself only.
        state, changes = seen([3.1] * 8, calibrated=False, layout=Layout.TP, state=state)
        assert changes == []
        assert state.drifting == {Layout.DP}

    def test_a_single_slow_step_is_no_drift_and_too_few_say_nothing(self) -> None:
        assert seen([1.0, 9.0, 1.0, 1.0, 9.0, 1.0, 1.0], calibrated=True)[1] == []
        assert seen([9.0] * 3, calibrated=True)[1] == []

    def test_it_says_when_it_is_over(self) -> None:
        _, changes = seen([2.0] * 8 + [1.0] * 8, calibrated=True)
        assert [change.drifting for change in changes] == [True, False]
        assert "back within" in changes[1].words(RULES)

    def test_times_that_say_nothing_are_left_out(self) -> None:
        state, change = observe(
            DriftState(), layout=Layout.DP, predicted_s=0.0, measured_s=1.0, calibrated=True
        )
        assert (state, change) == (DriftState(), None)

    @given(ratios=st.lists(st.floats(0.01, 100), max_size=60), calibrated=st.booleans())
    def test_alarms_alternate_and_memory_is_bounded(self, ratios: list[float], calibrated: bool) -> None:
        state, changes = seen(ratios, calibrated=calibrated)
        assert [change.drifting for change in changes] == [index % 2 == 0 for index in range(len(changes))]
        assert bool(state.drifting) is (len(changes) % 2 == 1)
        for layout in state.layouts.values():
            assert len(layout.ratios) <= RULES.window
            assert layout.steps == len(ratios)


def plan(number: int, sequences: int, rows: int = 1, layout: Layout = Layout.DP) -> StepPlan:
    return StepPlan(
        step=StepId(number),
        epoch=Epoch(0),
        layout=layout,
        sequences=tuple(
            SequenceStep(seq=SeqId(index + 1), start=9, tokens=(1,) * rows, sample=True)
            for index in range(sequences)
        ),
    )


class TestForecasts:
    SEEN = snapshot(decoding(4, 100), layout=Layout.DP)

    def test_a_forecast_is_the_step_of_those_that_run(self) -> None:
        expected = forecast(self.SEEN, MODEL)
        assert expected is not None
        assert (expected.sequences, expected.rows, expected.layout) == (4, 4, Layout.DP)
        assert forecast(snapshot(), MODEL) is None
        chunk = forecast(snapshot(prompts(2, 64), phase=Phase.PREFILL), MODEL)
        assert chunk is not None
        assert chunk.rows == 128

    def test_only_steps_that_ran_as_they_were_seen_are_compared(self) -> None:
        told: list[Decision] = []
        forecasts = Forecasts(MODEL, told.append, rules=RULES)
        ahead = PrecopyBatch(weight_layers=(0,), gathered=())
        for number, changed in enumerate(
            (plan(1, 5), plan(2, 4, layout=Layout.TP), replace(plan(3, 4), precopy=ahead), plan(4, 4, rows=2))
        ):
            forecasts.seen(self.SEEN)
            forecasts.planned(replace(changed, step=StepId(number)))
            forecasts.stepped(replace(changed, step=StepId(number)), 1.0)
        forecasts.planned(plan(8, 4))  # nobody has looked since
        forecasts.stepped(plan(8, 4), 1.0)
        assert forecasts.layouts == {}
        forecasts.seen(self.SEEN)
        forecasts.planned(plan(9, 4))
        forecasts.stepped(plan(9, 4), 1.0)
        assert forecasts.layouts[Layout.DP].steps == 1
        assert told == []

    def test_an_alarm_is_a_record(self) -> None:
        told: list[Decision] = []
        forecasts = Forecasts(MODEL, told.append, rules=RULES)
        expected = forecast(self.SEEN, MODEL)
        assert expected is not None
        for number in range(24):
            forecasts.seen(self.SEEN)
            forecasts.planned(plan(number, 4))
            forecasts.stepped(plan(number, 4), expected.step_s * (1.0 if number < 8 else 2.0))
        (record,) = told
        assert (record.cause, record.layout_from) == (Cause.DRIFT, Layout.DP)
        assert record.to_json()["inputs"]["reference"] == 1.0
        assert forecasts.drifting(Layout.DP)
        assert not forecasts.drifting(Layout.TP)
