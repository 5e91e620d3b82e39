"""Launched or replayed: what a group has recorded decides its steps' times and what a switch exposes."""

import json
from dataclasses import replace
from functools import partial

import pytest

from splash_core.cost.load import Load, Rows
from splash_core.cost.model import CostModel
from splash_core.cost.precopy import rest_cost
from splash_core.cost.step_kind import StepKind, decode_kind
from splash_core.cost.switch import SwitchBytes, SwitchCost, switch_bytes, switch_cost
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS, KvHistory, Layout
from splash_core.policy.config import PolicyConfig
from splash_core.policy.decision import Decision
from splash_core.policy.drift import forecast
from splash_core.policy.outlook import outlooks
from splash_core.policy.snapshot import Snapshot
from splash_core.policy.state import PolicyState
from splash_core.policy.switching import decide
from splash_core.scheduling.roles import Role
from splash_core.simulate.cluster import Detail
from splash_core.simulate.comparison import policy_course
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.pilots import Limit, Look, Move, Policy
from splash_core.simulate.workload import Workload
from splash_core.spec.catalogue import named_spec
from splash_core.switch.manifest import SwitchMode
from tests.support.policy_cases import cost_model, decoding, pools, prompts, snapshot
from tests.support.simulated import assert_same_course, batch_of, policies, simulated, small_fleet

V3 = cost_model(named_spec("deepseek-v3"), gpu="h200", dtype="bf16", ranks=8)
MEASURED = replace(V3, profile=replace(V3.profile, eager_layer_s=1e-3, overlap=1.0))
"""A GPU whose host takes a millisecond to launch a layer."""
SEEN = replace(snapshot(decoding(16, 32768, ranks=8), room=pools(1 << 20)), num_ranks=8, page_size=64)
TO_CP = policies(
    '[all]\nenabled = false\n[[decode.calendar]]\nfrom = "22:00"\nto = "23:00"\npin = "CP"',
    start_s=1795816785.0,
)
LONG = Workload(name="long", requests=tuple(batch_of(8, prompt=305, output=400)))


def owned(*rows: int) -> Load:
    """So many decode rows of each owner."""
    items = [Rows(1, 100, owner) for owner, count in enumerate(rows) for _ in range(count)]
    return Load.of(items, num_ranks=len(rows))


def test_the_fullest_rank_s_home_rows_decide() -> None:
    skewed = owned(5, 1)
    for layout in Layout:
        home = 5 if RULES[layout].history is KvHistory.OWNER else 3
        kinds = [decode_kind(RULES[layout], skewed, recorded_rows=rows) for rows in (0, home - 1, home)]
        assert kinds == [StepKind.LAUNCHED, StepKind.LAUNCHED, StepKind.REPLAYED]


@pytest.mark.parametrize("layout", Layout)
def test_a_launched_step_takes_no_less_than_its_launches(layout: Layout) -> None:
    load = owned(*[2] * 8)
    times = {kind: MEASURED.predict(RULES[layout], load, kind=kind) for kind in StepKind}
    launches = MEASURED.spec.layers * MEASURED.profile.eager_layer_s
    assert times[StepKind.REPLAYED].step_s < launches
    assert times[StepKind.LAUNCHED].step_s == pytest.approx(launches)
    assert [prediction.kind for prediction in times.values()] == list(StepKind)
    assert times[StepKind.LAUNCHED].form is times[StepKind.REPLAYED].form


def test_a_cpu_computes_both_alike() -> None:
    smol = cost_model()
    model = replace(smol, profile=replace(smol.profile, eager_layer_s=1e-3))
    for layout in Layout:
        load, rule = owned(3, 2), RULES[layout]
        launched, replayed = (
            model.predict(rule, load, kind=kind) for kind in (StepKind.LAUNCHED, StepKind.REPLAYED)
        )
        assert launched.step_s == replayed.step_s


def to_tp(seen: Snapshot, model: CostModel = MEASURED) -> Decision:
    config = PolicyConfig(confirm=1, dwell_s=0.0, exposed_ms_per_minute=1e9)
    decision, _ = decide(seen, model, config, PolicyState().with_pin(Layout.TP))
    assert decision.switches
    return decision


def priced(seen: Snapshot, mode: SwitchMode) -> SwitchCost:
    """All histories to every rank, by the equation for the mode."""
    look = outlooks(seen, MEASURED)[Layout.TP]
    rules = RULES[Layout.DP], RULES[Layout.TP]
    moved = switch_bytes(MEASURED.spec, MEASURED.precision, *rules, owner_tokens=seen.owned_tokens())
    layers = MEASURED.spec.num_mla_layers
    return switch_cost(MEASURED.profile, moved, layers=layers, step_s=look.prediction.step_s, mode=mode)


@pytest.mark.parametrize(
    ("recorded_rows", "kind", "mode"),
    [
        (128, StepKind.REPLAYED, SwitchMode.BLOCKING),
        (0, StepKind.LAUNCHED, SwitchMode.OVERLAPPED),
        (1, StepKind.LAUNCHED, SwitchMode.OVERLAPPED),
    ],
    ids=["recorded", "graphs off", "beyond the buckets"],
)
def test_a_switch_is_priced_as_its_step_runs(recorded_rows: int, kind: StepKind, mode: SwitchMode) -> None:
    seen = replace(SEEN, recorded_rows=recorded_rows)
    record = to_tp(seen).to_json()
    offered, cost = record["inputs"]["executors"]["overlapped"], priced(seen, mode)
    assert offered["exposed_ms"] == pytest.approx(cost.exposed_s * 1e3)
    assert offered["cost_ms"] == pytest.approx(cost.total_s * 1e3)
    assert record["inputs"]["recorded_rows"] == recorded_rows
    assert record["inputs"]["step_kinds"] == dict.fromkeys(STANDARD_LAYOUTS, kind.value)
    expected = forecast(seen, MEASURED)
    assert expected is not None
    assert expected.step_s * 1e3 == pytest.approx(record["predicted_ms"]["DP"], abs=1e-4)
    json.dumps(record, allow_nan=False)


def test_a_launched_step_hides_what_a_replayed_one_waits_for() -> None:
    launched, replayed = priced(SEEN, SwitchMode.OVERLAPPED), priced(SEEN, SwitchMode.BLOCKING)
    hidden = replayed.exposed_s - launched.exposed_s
    assert hidden == pytest.approx((MEASURED.spec.num_mla_layers - 1) * MEASURED.profile.eager_layer_s)
    # What hides slows the step down, and all that run wait for that, too.
    assert launched.exposed_s < launched.stall_s < replayed.stall_s


@pytest.mark.parametrize("kind", StepKind)
def test_what_copying_ahead_has_left_overlaps_a_launched_step_only_beyond_one_transfer(
    kind: StepKind,
) -> None:
    profile = replace(MEASURED.profile, collective_latency_s=0.0, link_bps=1000.0, interference=0.25)
    pages, weights = SwitchBytes(weights=0, kv=1000), SwitchBytes(weights=1000, kv=0)

    def exposed_s(rest: SwitchBytes, whole_bytes: int) -> tuple[float, float]:
        cost = rest_cost(profile, rest, layers=4, kind=kind, step_s=4.0, whole_bytes=whole_bytes)
        return cost.exposed_s, cost.slowed_s

    assert exposed_s(pages, 4000) == (4.0, 0.0)
    beyond = (4.0, 0.0) if kind is StepKind.REPLAYED else (1.0, 0.75)
    assert exposed_s(pages, 3999) == beyond
    assert exposed_s(weights, 4000) == beyond


def test_a_prompt_computed_again_beside_decode_rows_is_launched() -> None:
    seen = replace(SEEN, recorded_rows=128)
    again = replace(seen, running=(*seen.running, *prompts(1, 512)))
    assert outlooks(seen, V3)[Layout.DP].prediction.kind is StepKind.REPLAYED
    assert outlooks(again, V3)[Layout.DP].prediction.kind is StepKind.PROMPTS
    last_row = replace(prompts(1, 1)[0], context_tokens=700)
    assert replace(seen, running=(*seen.running, last_row)).decodes
    inner_row = replace(last_row, remaining_prompt=2)
    assert not replace(seen, running=(*seen.running, inner_row)).decodes


class Overlaps(Policy):
    """A policy whose switches copy nothing ahead, whatever that costs."""

    def at_boundary(self, now: float, look: Look, move: Move, limit: Limit) -> None:
        super().at_boundary(now, look, lambda layout, _: move(layout, SwitchMode.OVERLAPPED), limit)


def overlapping(fleet: Fleet, role: Role, name: str) -> Overlaps:
    return Overlaps(fleet.model, TO_CP.of(fleet, role, name))


def test_simulated_switches_expose_by_what_the_fleet_has_recorded() -> None:
    exposed: dict[bool, float] = {}
    for records in (False, True):
        fleet = small_fleet(records_steps=records)
        assert fleet.config(Role.DECODE, "d").recorded_rows == (32 if records else 0)
        assert fleet.config(Role.PREFILL, "p").recorded_rows == 0
        course = replace(policy_course(fleet, TO_CP), pilot=partial(overlapping, fleet))
        ledgers = [simulated(fleet, LONG, course=course, detail=detail) for detail in Detail]
        for other in ledgers[1:]:
            assert_same_course(ledgers[0], other)
        (switch,) = ledgers[0].switches
        assert (switch.mode, switch.layout_to) == (SwitchMode.OVERLAPPED, Layout.CP)
        exposed[records] = switch.exposed_s
    assert 0 < exposed[False] < 0.5 * exposed[True]
