"""Properties of `decide` under arbitrary loads: dwell, pins, feasibility, complete and valid records."""

import json
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.ids import RankId
from splash_core.layout.layout import Layout
from splash_core.policy.config import PolicyConfig
from splash_core.policy.decision import DecisionVerdict
from splash_core.policy.outlook import outlooks
from splash_core.policy.snapshot import (
    InputAges,
    LayoutPool,
    Phase,
    RunningSequence,
    Snapshot,
    WaitingSequence,
)
from splash_core.policy.state import PolicyState
from splash_core.policy.switching import decide
from tests.support.policy_cases import cost_model, snapshot

MODEL = cost_model()
layouts = st.sampled_from(list(Layout))


@st.composite
def running_sequences(draw: st.DrawFn, phase: Phase) -> RunningSequence:
    rows = 1 if phase is Phase.DECODE else draw(st.integers(0, 256))
    return RunningSequence(
        context_tokens=draw(st.integers(0, 3000)),
        step_rows=rows,
        remaining_prompt=0 if phase is Phase.DECODE else rows + draw(st.integers(0, 1000)),
        projected_output=draw(st.integers(0, 400)) if phase is Phase.DECODE else 0,
        owner=RankId(draw(st.integers(0, 1))),
    )


@st.composite
def room(draw: st.DrawFn, layout: Layout) -> LayoutPool:
    if draw(st.integers(0, 4)) == 0:
        return LayoutPool(feasible=False, reason=f"{layout} is out")
    return LayoutPool(feasible=True, total_tokens=draw(st.integers(16, 8192)))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    phase = draw(st.sampled_from(list(Phase)))
    waiting = st.builds(
        WaitingSequence, prompt_tokens=st.integers(1, 2000), projected_output=st.integers(0, 100)
    )
    ages = st.none() | st.floats(0, 20)
    return snapshot(
        draw(st.lists(running_sequences(phase), max_size=8)),
        phase=phase,
        layout=draw(layouts),
        waiting=draw(st.lists(waiting, max_size=6)),
        room={layout: draw(room(layout)) for layout in Layout},
        pending_handoff_bytes=draw(st.integers(0, 10**9)),
        recorded_rows=draw(st.sampled_from([0, 1, 64])),
        staging_bytes=draw(st.sampled_from([1, 1 << 20, 1 << 26])),
        switch_pending=draw(st.booleans()) and draw(st.booleans()),
        ages=InputAges(running_s=draw(ages)) if draw(st.booleans()) else InputAges(),
    )


configs = st.builds(
    PolicyConfig,
    allowed=st.lists(layouts, min_size=1, max_size=4, unique=True).map(tuple),
    margin=st.floats(0, 0.3),
    dwell_s=st.floats(0, 5),
    confirm=st.integers(1, 3),
    exposed_ms_per_minute=st.sampled_from([0.0, 200.0, 1e9]),
)
steps = st.lists(st.tuples(st.floats(0, 3), snapshots()), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(steps=steps, config=configs, start=layouts)
def test_switches_keep_the_dwell_and_only_enter_what_fits(
    steps: list[tuple[float, Snapshot]], config: PolicyConfig, start: Layout
) -> None:
    state, layout, time, last = PolicyState(), start, 0.0, None
    for pause, seen in steps:
        time += pause
        seen = replace(seen, time_s=time, layout=layout)
        decision, state = decide(seen, MODEL, config, state)
        assert set(decision.predicted_ms) == {name for name, pool in seen.pools.items() if pool.feasible}
        assert all(ms >= 0 for ms in decision.predicted_ms.values())
        assert decision.layout_from is layout
        assert decision.reason
        json.dumps(decision.to_json(), allow_nan=False)
        if decision.verdict is not DecisionVerdict.SWITCH:
            continue
        target = decision.layout_to
        assert target is not layout
        assert target in config.allowed
        assert seen.pools[target].feasible
        assert not outlooks(seen, MODEL)[target].refusal
        assert not seen.switch_pending
        assert seen.ages.running_s is not None
        assert last is None or time - last >= config.dwell_s - 1e-9
        assert state.spent_in_minute(time) * 1e3 <= config.exposed_ms_per_minute + 1e-6
        last, layout = time, target


@settings(max_examples=100, deadline=None)
@given(steps=steps, config=configs, pin=layouts)
def test_a_pin_wins(steps: list[tuple[float, Snapshot]], config: PolicyConfig, pin: Layout) -> None:
    state, layout, time = PolicyState().with_pin(pin), pin, 0.0
    for pause, seen in steps:
        time += pause
        decision, state = decide(replace(seen, time_s=time, layout=layout), MODEL, config, state)
        assert decision.layout_to is pin
        assert decision.verdict is DecisionVerdict.HOLD


@settings(max_examples=100, deadline=None)
@given(seen=snapshots(), config=configs)
def test_decisions_are_pure(seen: Snapshot, config: PolicyConfig) -> None:
    state = PolicyState()
    assert decide(seen, MODEL, config, state) == decide(seen, MODEL, config, state)
    assert state == PolicyState()


@settings(max_examples=30, deadline=None)
@given(period=st.integers(1, 6), dwell=st.integers(3, 10))
def test_an_oscillating_load_switches_at_most_once_a_dwell(period: int, dwell: int) -> None:
    many = [
        RunningSequence(context_tokens=60, step_rows=1, projected_output=200, owner=RankId(i % 2))
        for i in range(16)
    ]
    one = [RunningSequence(context_tokens=1500, step_rows=1, projected_output=200)]
    config = PolicyConfig(dwell_s=float(dwell), confirm=1)
    state, layout, times = PolicyState(), Layout.DP, list[float]()
    for tick in range(60):
        running = many if (tick // period) % 2 else one
        decision, state = decide(snapshot(running, time_s=float(tick), layout=layout), MODEL, config, state)
        if decision.switches:
            times.append(decision.time_s)
            layout = decision.layout_to
    assert times
    assert all(later - sooner >= dwell for sooner, later in pairwise(times))
