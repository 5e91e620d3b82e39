"""The policy drives a real scheduler on symbolic ranks: a load that narrows changes layout by itself.

Time is what the cost model predicts for the demo model on the CPU profile, so the run is deterministic.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.policy.config import PolicyConfig
from splash_core.policy.decision import Cause, Decision, DecisionVerdict, Executor
from splash_core.policy.state import PolicyState
from splash_core.policy.switching import decide, refused
from splash_core.scheduling.attention_choice import Fastest
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Refusal, SwitchMode
from tests.support.policy_cases import cost_model
from tests.support.toy_group import ToyGroup, arena_of

MODEL = cost_model()
DWELL_S = 2.0


@dataclass
class Pilot:
    """What a leader does between two steps."""

    group: ToyGroup
    config: PolicyConfig
    state: PolicyState = field(default_factory=PolicyState)
    decisions: list[Decision] = field(default_factory=list)

    def step(self) -> bool:
        snapshot = self.group.scheduler.snapshot()
        decision, self.state = decide(snapshot, MODEL, self.config, self.state)
        if decision.switches:
            outcome = self.group.scheduler.request_switch(decision.layout_to, decision.executor.mode)
            if isinstance(outcome, Refusal):
                decision = refused(decision, outcome.reason)
        self.decisions.append(decision)
        self.group.clock += decision.predicted_ms[snapshot.layout] / 1e3
        return self.group.step() is not None

    def run(self, limit: int = 3000) -> None:
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError("livelock")

    @property
    def switches(self) -> list[Decision]:
        return [decision for decision in self.decisions if decision.switches]


def group_of(ordinary: int, layout: Layout = Layout.DP, **settings: object) -> ToyGroup:
    arena = arena_of(num_ranks=2, ordinary=ordinary, borrowed=8, page_size=16)
    return ToyGroup(
        role=Role.COMBINED,
        layout=layout,
        arena=arena,
        chunk_tokens=256,
        layouts=STANDARD_LAYOUTS,
        **settings,  # type: ignore[arg-type]
    )


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def test_sixteen_short_requests_then_one_long() -> None:
    group = group_of(ordinary=400)
    pilot = Pilot(group, PolicyConfig(dwell_s=DWELL_S))
    for index in range(16):
        group.add([3 + (index + position) % 8 for position in range(40)], greedy(80))
    pilot.run()
    short_end = len(pilot.decisions)
    group.add([3 + position % 8 for position in range(1500)], greedy(150))
    pilot.run()

    for request in group.requests.values():
        assert request.finished is not None
        request.check()
    group.assert_empty()
    assert [decision.layout_to for decision in pilot.switches] == [
        event.layout_to for event in group.switched
    ]
    late = [decision for decision in pilot.decisions[short_end:] if decision.switches]
    assert [(decision.layout_from, decision.layout_to) for decision in late][:1] == [(Layout.DP, Layout.TP)]
    assert all(later.time_s - sooner.time_s >= DWELL_S for sooner, later in pairwise(pilot.switches))
    for decision in pilot.decisions:
        assert set(decision.to_json()["predicted_ms"]) == {"TP", "CP", "DP", "DOP"}


def test_histories_are_not_put_where_they_do_not_fit() -> None:
    group = group_of(ordinary=60)
    pilot = Pilot(group, PolicyConfig(dwell_s=DWELL_S))
    for index in range(3):
        group.add([3 + (index + position) % 8 for position in range(400)], greedy(60))
    while any(not request.told for request in group.requests.values()):
        group.step()
    # 29 pages each at the end: more than TP's 68 together, and uneven over two owners.
    pilot.run()
    crowded = [decision for decision in pilot.decisions if decision.inputs["running"] == 3]
    assert crowded
    assert not any(decision.switches for decision in crowded)
    rejected = [decision for decision in crowded if decision.verdict is DecisionVerdict.REJECT]
    assert {(decision.cause, decision.layout_to) for decision in rejected} == {(Cause.NO_ROOM, Layout.TP)}
    assert not group.refused
    group.assert_empty()


def switched_with(config: PolicyConfig, **settings: object) -> Pilot:
    """Sixteen short requests that begin to decode in TP, until the policy has led them to DP."""
    group = group_of(ordinary=400, layout=Layout.TP, **settings)
    for index in range(16):
        group.add([3 + (index + position) % 8 for position in range(60)], greedy(200))
    while any(not request.told for request in group.requests.values()):
        group.step()
    pilot = Pilot(group, config)
    pilot.run()
    for request in group.requests.values():
        assert request.finished is not None
        request.check()
    group.assert_empty()
    return pilot


def test_a_switch_that_keeps_the_itl_bound_is_overlapped() -> None:
    pilot = switched_with(PolicyConfig(dwell_s=DWELL_S, itl_bound_ms=400.0))
    (first, *_) = pilot.switches
    assert (first.layout_to, first.executor) == (Layout.DP, Executor.OVERLAPPED)
    assert [event.mode for event in pilot.group.switched] == [SwitchMode.OVERLAPPED] * len(pilot.switches)


def test_a_switch_that_would_break_the_itl_bound_is_copied_ahead() -> None:
    pilot = switched_with(
        PolicyConfig(dwell_s=DWELL_S, itl_bound_ms=160.0), precopy_bytes_per_step=10_000_000
    )
    (first, *_) = pilot.switches
    assert (first.layout_to, first.executor) == (Layout.DP, Executor.PRECOPIED)
    offered = first.to_json()["inputs"]["executors"]
    assert offered["precopied"]["exposed_ms"] < offered["overlapped"]["exposed_ms"]
    assert offered["precopied"]["ahead_steps"] > 0
    (event, *_) = pilot.group.switched
    assert (event.layout_to, event.mode, event.fallback) == (Layout.DP, SwitchMode.PRECOPIED, "")
    assert any(plan.precopy is not None for plan in pilot.group.plans)
    assert any(decision.cause is Cause.SWITCH_PENDING for decision in pilot.decisions)


def test_copying_ahead_for_longer_than_the_gain_lasts_is_not_chosen() -> None:
    pilot = switched_with(PolicyConfig(dwell_s=DWELL_S, itl_bound_ms=160.0), precopy_bytes_per_step=1)
    # A byte a step would take longer than the requests live.
    assert all(decision.executor is not Executor.PRECOPIED for decision in pilot.decisions)


@pytest.mark.parametrize("layout", STANDARD_LAYOUTS)
def test_steps_are_computed_as_the_record_says(layout: Layout) -> None:
    arena = arena_of(num_ranks=2, ordinary=400, borrowed=8, page_size=16)
    group = ToyGroup(role=Role.PREFILL, layout=layout, arena=arena, chunk_tokens=256, chooser=Fastest(MODEL))
    config = PolicyConfig(allowed=(layout,), ttft_bound_ms=3000.0)
    for index in range(4):
        group.add([3 + (index + position) % 8 for position in range(700)], greedy(1))
    group.begin()
    group.end()
    chunks = set[int]()
    while group.scheduler.count(SeqState.RUNNING):
        decision, _ = decide(group.scheduler.snapshot(), MODEL, config, PolicyState())
        assert decision.steps is not None
        group.scheduler.limit_chunk(decision.steps.chunk_tokens)
        # What the record saw is cut to the chunk that it chose, so the next record sees the next step.
        decision, _ = decide(group.scheduler.snapshot(), MODEL, config, PolicyState())
        assert group.begin()
        assert group.plan is not None
        assert decision.steps is not None
        assert group.plan.num_rows <= decision.steps.chunk_tokens
        if not group.plan.started:
            assert (group.plan.form, group.plan.cp_storage) == (decision.steps.form, decision.steps.storage)
        chunks.add(decision.steps.chunk_tokens)
        group.end()
    assert min(chunks) < 256
