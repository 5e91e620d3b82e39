"""The layout policy on the demo model's shape: what it does, when it does not, and what it records."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from splash_core.cost.load import Load, Rows
from splash_core.cost.step_kind import StepKind
from splash_core.errors import ConfigError
from splash_core.layout.forms import AttentionForm, CpStorage, KernelLibrary
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS, Layout
from splash_core.policy.config import PolicyConfig, load_document
from splash_core.policy.decision import Cause, Decision, DecisionVerdict, Executor, StepShape
from splash_core.policy.document import parse_document
from splash_core.policy.log import DecisionLog
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
from splash_core.policy.switching import decide, refused
from splash_core.spec.catalogue import named_spec
from tests.support.policy_cases import cost_model, decoding, pools, prompts, snapshot

MODEL = cost_model()
EAGER = PolicyConfig(confirm=1, dwell_s=0.0, exposed_ms_per_minute=1e9)
SHORT = decoding(16, 60)
LONG = decoding(1, 1500)


def run(snapshots: list[Snapshot], config: PolicyConfig, state: PolicyState | None = None) -> list[Decision]:
    """Decide on each snapshot in turn, in the layout that the decisions before it led to."""
    state, layout, decisions = state or PolicyState(), snapshots[0].layout, []
    for seen in snapshots:
        decision, state = decide(replace(seen, layout=layout), MODEL, config, state)
        layout = decision.layout_to if decision.switches else layout
        decisions.append(decision)
    return decisions


class TestFollowsTheLoad:
    @pytest.mark.parametrize(
        ("phase", "start"),
        # From TP, a prefill group gains less than the margin by going to DP and back.
        [(Phase.DECODE, layout) for layout in STANDARD_LAYOUTS]
        + [(Phase.PREFILL, layout) for layout in STANDARD_LAYOUTS if layout is not Layout.TP],
    )
    def test_sixteen_short_then_one_long(self, phase: Phase, start: Layout) -> None:
        many, one = (SHORT, LONG) if phase is Phase.DECODE else (prompts(16, 60), prompts(1, 1500))
        config = PolicyConfig(dwell_s=10.0)
        decisions = run(
            [
                snapshot(many if time < 30 else one, time_s=float(time), phase=phase, layout=start)
                for time in range(60)
            ],
            config,
        )
        switches = [decision for decision in decisions if decision.switches]
        assert switches
        assert all(later.time_s - sooner.time_s >= 10 for sooner, later in pairwise(switches))
        assert all(set(decision.predicted_ms) == set(STANDARD_LAYOUTS) for decision in decisions)
        assert decisions[29].layout_to is Layout.DP
        assert decisions[59].layout_to is Layout.TP

    def test_owners_divide_many_and_heads_divide_one(self) -> None:
        assert (
            decide(snapshot(SHORT, layout=Layout.TP), MODEL, EAGER, PolicyState())[0].layout_to is Layout.DP
        )
        assert decide(snapshot(LONG, layout=Layout.DP), MODEL, EAGER, PolicyState())[0].layout_to is Layout.TP

    def test_capacity_decides_when_room_is_short(self) -> None:
        # One request of 1,000 tokens: DP's pool of 600 a rank can never hold it, CP's stripes can.
        room = pools(600)
        big = [WaitingSequence(prompt_tokens=1000, projected_output=16)]
        seen = snapshot(SHORT[:2], waiting=big, room=room, layout=Layout.DP)
        decision, _ = decide(seen, MODEL, EAGER, PolicyState())
        assert decision.switches
        assert decision.layout_to is Layout.CP

    def test_prefill_counts_admission_waves(self) -> None:
        waiting = [WaitingSequence(prompt_tokens=512)] * 8
        looks = outlooks(snapshot(phase=Phase.PREFILL, waiting=waiting, room=pools(1024)), MODEL)
        assert {layout: look.waves for layout, look in looks.items()} == {
            Layout.TP: 4,
            Layout.CP: 2,
            Layout.DP: 2,
            Layout.DOP: 2,
        }
        assert looks[Layout.TP].admitted == 2

    def test_itl_bound_excludes_slow_layouts(self) -> None:
        seen = snapshot(SHORT)
        free = outlooks(seen, MODEL)
        bound = (free[Layout.DP].prediction.step_s + free[Layout.TP].prediction.step_s) / 2
        bounded = outlooks(seen, MODEL, itl_bound_s=bound)
        assert bounded[Layout.TP].objective_s == float("inf")
        assert bounded[Layout.DP] == free[Layout.DP]
        # A bound that none meets binds none.
        assert outlooks(seen, MODEL, itl_bound_s=1e-9) == free

    def test_skewed_owners_favour_layouts_without_owners(self) -> None:
        on_one = [replace(running, owner=decoding(1, 1)[0].owner) for running in decoding(8, 900)]
        even = outlooks(snapshot(decoding(8, 900)), MODEL)
        skewed = outlooks(snapshot(on_one), MODEL)
        assert skewed[Layout.DP].step_ms > 1.2 * even[Layout.DP].step_ms
        assert skewed[Layout.CP].step_ms == even[Layout.CP].step_ms


class TestHolds:
    def hold(
        self, seen: Snapshot, config: PolicyConfig = EAGER, state: PolicyState | None = None
    ) -> Decision:
        decision, _ = decide(seen, MODEL, config, state or PolicyState())
        assert decision.verdict is DecisionVerdict.HOLD
        assert set(decision.predicted_ms) == {layout for layout, pool in seen.pools.items() if pool.feasible}
        return decision

    def test_best_already(self) -> None:
        assert self.hold(snapshot(SHORT, layout=Layout.DP)).cause is Cause.NO_LEAD

    def test_margin(self) -> None:
        decision = self.hold(snapshot(LONG), replace(EAGER, margin=0.5))
        assert decision.cause is Cause.NO_LEAD
        assert "within the margin of 50.0%" in decision.reason

    @pytest.mark.parametrize("name", ["running", "waiting", "pools", "handoff"])
    def test_stale_or_missing_input(self, name: str) -> None:
        old = InputAges(**{f"{name}_s": 11.0})
        assert name in self.hold(snapshot(LONG, ages=old)).reason
        assert self.hold(snapshot(LONG, ages=old)).cause is Cause.STALE_INPUT
        gone = InputAges(**{f"{name}_s": None})
        assert self.hold(snapshot(LONG, ages=gone)).cause is Cause.MISSING_INPUT

    def test_no_pools(self) -> None:
        assert self.hold(snapshot(LONG, room={})).cause is Cause.MISSING_INPUT

    def test_idle(self) -> None:
        assert self.hold(snapshot()).cause is Cause.IDLE
        done = [RunningSequence(context_tokens=90, step_rows=0)]
        assert self.hold(snapshot(done, phase=Phase.PREFILL)).cause is Cause.IDLE

    def test_pending_switch(self) -> None:
        assert self.hold(snapshot(LONG, switch_pending=True)).cause is Cause.SWITCH_PENDING

    def test_dwell(self) -> None:
        state = PolicyState(last_switch_s=-4.0)
        decision = self.hold(snapshot(LONG), replace(EAGER, dwell_s=10.0), state)
        assert decision.cause is Cause.DWELL
        assert "6.0 s of the dwell" in decision.reason

    def test_confirmation_needs_the_same_layout_again(self) -> None:
        config = replace(EAGER, confirm=3)
        decisions = run([snapshot(LONG), snapshot(LONG), snapshot(SHORT)] + [snapshot(LONG)] * 3, config)
        assert [decision.cause for decision in decisions] == [
            Cause.CONFIRMING,
            Cause.CONFIRMING,
            Cause.NO_LEAD,
            Cause.CONFIRMING,
            Cause.CONFIRMING,
            Cause.LEAD,
        ]

    def test_gain_must_pay(self) -> None:
        ending = [replace(LONG[0], projected_output=2)]
        decision = self.hold(snapshot(ending))
        assert decision.cause is Cause.COST
        assert decision.cost_ms > decision.inputs["gain_ms"] > 0

    def test_pushes_under_way_are_priced(self) -> None:
        assert decide(snapshot(LONG), MODEL, EAGER, PolicyState())[0].switches
        busy = snapshot(LONG, pending_handoff_bytes=20_000_000_000)
        decision = self.hold(busy)
        assert decision.cause is Cause.COST
        assert "ms of it for 18.63 GiB of handoffs under way" in decision.reason
        idle = decide(snapshot(LONG), MODEL, EAGER, PolicyState())[0]
        # Each of the two ranks has its half on a link of its own.
        delay_ms = 10_000_000_000 / MODEL.profile.link_bps * 1e3
        assert decision.inputs["handoff_delay_ms"] == pytest.approx(delay_ms)
        assert idle.inputs["handoff_delay_ms"] == 0.0
        assert decision.cost_ms == pytest.approx(idle.cost_ms + delay_ms)

    def test_budget(self) -> None:
        decision = self.hold(snapshot(LONG), replace(EAGER, exposed_ms_per_minute=1.0))
        assert decision.cause is Cause.BUDGET
        state = PolicyState(spent=((-59.0, 0.1),))
        assert (
            self.hold(snapshot(LONG), replace(EAGER, exposed_ms_per_minute=103.0), state).cause
            is Cause.BUDGET
        )
        older = PolicyState(spent=((-61.0, 0.1),))
        assert decide(snapshot(LONG), MODEL, replace(EAGER, exposed_ms_per_minute=103.0), older)[0].switches

    def test_manual_hold_ends(self) -> None:
        state = PolicyState().with_manual_switch(0.0, hold_s=60.0)
        assert self.hold(snapshot(LONG, time_s=59.0), state=state).cause is Cause.MANUAL_HOLD
        assert decide(snapshot(LONG, time_s=60.0), MODEL, EAGER, state)[0].switches

    def test_shadow_records_what_it_would_do(self) -> None:
        decision = self.hold(snapshot(LONG), replace(EAGER, shadow=True))
        assert decision.cause is Cause.SHADOW
        assert decision.layout_to is Layout.TP

    def test_only_allowed_layouts(self) -> None:
        config = replace(EAGER, allowed=(Layout.DP, Layout.DOP))
        assert self.hold(snapshot(LONG), config).layout_to is Layout.DP

    def test_leaves_a_layout_that_is_not_allowed(self) -> None:
        config = replace(EAGER, allowed=(Layout.CP,))
        decision, _ = decide(snapshot(LONG, layout=Layout.DP), MODEL, config, PolicyState())
        assert decision.switches
        assert decision.layout_to is Layout.CP


class TestRejects:
    def test_histories_do_not_fit(self) -> None:
        room = pools(TP=LayoutPool(feasible=True, total_tokens=800))
        decision, _ = decide(snapshot(LONG, room=room), MODEL, EAGER, PolicyState())
        assert decision.verdict is DecisionVerdict.REJECT
        assert decision.cause is Cause.NO_ROOM
        assert decision.layout_to is Layout.TP
        # 1,501 tokens and 200 to come in pages of 16, and 50 pages of room.
        assert "need 107 pages" in decision.reason
        assert "pool has 50" in decision.reason

    def test_infeasible_is_never_entered_and_says_why(self) -> None:
        room = pools(TP=LayoutPool(feasible=False, reason="9 heads do not split over 2 ranks"))
        decision, _ = decide(snapshot(LONG, room=room), MODEL, EAGER, PolicyState())
        assert decision.layout_to is not Layout.TP
        assert decision.to_json()["refused"] == {"TP": "9 heads do not split over 2 ranks"}
        assert decision.to_json()["feasible"] == {"CP": True, "DP": True, "DOP": True, "TP": False}

    def test_refused_by_the_planner(self) -> None:
        decision, state = decide(snapshot(LONG), MODEL, replace(EAGER, dwell_s=5.0), PolicyState())
        record = refused(decision, "needs 9 slots, 4 are free")
        assert record.verdict is DecisionVerdict.REJECT
        assert not record.switches
        again, _ = decide(snapshot(LONG, time_s=1.0), MODEL, replace(EAGER, dwell_s=5.0), state)
        assert again.cause is Cause.DWELL


class TestExecutor:
    """Sixteen histories of 32K tokens on eight H200: to bring all to every rank takes 60 ms, a step 20."""

    V3 = cost_model(named_spec("deepseek-v3"), gpu="h200", dtype="fp8", ranks=8)
    SEEN = replace(
        snapshot(decoding(16, 32768, ranks=8), room=pools(1 << 20), precopy_bytes_per_step=256 << 20),
        num_ranks=8,
        page_size=64,
        recorded_rows=128,
    )

    def pinned(self, seen: Snapshot, config: PolicyConfig = EAGER) -> Decision:
        decision, _ = decide(seen, self.V3, config, PolicyState().with_pin(Layout.TP))
        assert decision.switches
        return decision

    def test_a_move_far_longer_than_a_decode_step_is_copied_ahead(self) -> None:
        decision = self.pinned(self.SEEN)
        record = decision.to_json()
        offered = record["inputs"]["executors"]
        assert record["executor"] == "precopied"
        assert offered["overlapped"]["exposed_ms"] > record["predicted_ms"]["DP"]
        assert offered["precopied"]["exposed_ms"] < 0.1 * offered["overlapped"]["exposed_ms"]
        moved = 16 * 32768 * 14 // 16 * self.V3.precision.kv_token_bytes(self.V3.spec)
        rest = 16 * 65 * 14 // 16 * self.V3.precision.kv_token_bytes(self.V3.spec)
        assert offered["precopied"]["ahead_steps"] == -(-(moved - rest) // (256 << 20))

    def test_ordinary_steps_pay_for_what_they_copy(self) -> None:
        profile = self.V3.profile
        way = self.pinned(self.SEEN).to_json()["inputs"]["executors"]["precopied"]
        copied_s = way["ahead_steps"] * (256 << 20) / profile.link_bps
        assert way["cost_ms"] / 1e3 == pytest.approx(copied_s * profile.interference, rel=0.1)

    def test_handoffs_under_way_stretch_it(self) -> None:
        seen = replace(self.SEEN, precopy_bytes_per_step=1 << 30)
        free = self.pinned(seen).to_json()["inputs"]["executors"]["precopied"]["ahead_steps"]
        busy = self.pinned(replace(seen, pending_handoff_bytes=1 << 40))
        ahead = busy.to_json()["inputs"]["executors"]["precopied"]["ahead_steps"]
        step_s = busy.predicted_ms[Layout.DP] / 1e3
        assert ahead > free
        # They leave an eighth of the link.
        assert ahead == pytest.approx(free * (1 << 30) / (self.V3.profile.link_bps * step_s / 8), rel=0.1)

    def test_without_headroom_it_is_overlapped_and_says_why(self) -> None:
        full = LayoutPool(feasible=True, total_tokens=1 << 20, free_tokens=100_000)
        decision = self.pinned(replace(self.SEEN, pools=pools(1 << 20, DP=full, TP=full)))
        assert decision.executor is Executor.OVERLAPPED
        why = decision.to_json()["inputs"]["executors"]["precopied"]["refused"]
        assert why == "second copies need room for 458752 tokens on a rank, there is room for 100000"

    def test_a_group_that_cannot_copy_ahead_says_so(self) -> None:
        decision = self.pinned(replace(self.SEEN, precopy_bytes_per_step=0))
        assert decision.executor is Executor.OVERLAPPED
        assert "does not copy ahead" in decision.to_json()["inputs"]["executors"]["precopied"]["refused"]

    def test_prefill_steps_hide_a_move(self) -> None:
        prompt = [RunningSequence(context_tokens=32768, step_rows=2048, remaining_prompt=8192)] * 8
        seen = replace(self.SEEN, phase=Phase.PREFILL, running=tuple(prompt), chunk_tokens=16384)
        assert self.pinned(seen).executor is Executor.OVERLAPPED

    def test_what_is_wanted_and_not_done_waits(self) -> None:
        config = replace(EAGER, dwell_s=10.0)
        decision, _ = decide(snapshot(LONG), MODEL, config, PolicyState(last_switch_s=-4.0))
        assert (decision.cause, decision.executor) == (Cause.DWELL, Executor.WAIT)
        staying, _ = decide(snapshot(SHORT, layout=Layout.DP), MODEL, EAGER, PolicyState())
        assert staying.executor is Executor.NONE

    def test_the_budget_may_have_room_for_what_is_copied_ahead_only(self) -> None:
        tight = replace(EAGER, exposed_ms_per_minute=2.0)
        seen = snapshot(LONG, precopy_bytes_per_step=10_000_000)
        assert decide(seen, MODEL, tight, PolicyState())[0].executor is Executor.PRECOPIED


class TestSteps:
    """How the next steps are computed is part of the choice."""

    def steps(self, seen: Snapshot, config: PolicyConfig = EAGER) -> StepShape:
        decision, _ = decide(seen, MODEL, config, PolicyState())
        assert decision.steps is not None
        assert decision.to_json()["steps"] == decision.steps.to_json()
        return decision.steps

    def test_decode_is_absorbed_and_passes_queries(self) -> None:
        assert self.steps(snapshot(SHORT)) == StepShape(
            chunk_tokens=256,
            form=AttentionForm.ABSORBED,
            storage=CpStorage.PASS_Q,
            library=KernelLibrary.TORCH,
        )

    @pytest.mark.parametrize("history", [0, 4000])
    @pytest.mark.parametrize("layout", STANDARD_LAYOUTS)
    def test_they_are_those_of_the_fastest_prediction(self, layout: Layout, history: int) -> None:
        chunk = RunningSequence(context_tokens=history, step_rows=256, remaining_prompt=256)
        only = replace(EAGER, allowed=(layout,))
        shape = self.steps(snapshot([chunk], phase=Phase.PREFILL, layout=layout), only)
        rows = Load.of([Rows(256, history)], num_ranks=2)
        best = MODEL.predict(RULES[layout], rows, kind=StepKind.PROMPTS)
        assert (shape.form, shape.storage) == (best.form, best.storage)

    def test_a_chunk_keeps_the_bound_on_the_first_token(self) -> None:
        waiting = [WaitingSequence(prompt_tokens=2000)] * 4
        seen = snapshot(phase=Phase.PREFILL, waiting=waiting, layout=Layout.DP)
        free = outlooks(seen, MODEL)
        assert all(look.chunk_tokens == 256 for look in free.values())
        bound = 3 * 0.4 * min(look.prediction.step_s for look in free.values())
        bounded = outlooks(seen, MODEL, ttft_bound_s=bound)
        kept = [look for look in bounded.values() if math.isfinite(look.objective_s)]
        assert kept
        for look in kept:
            assert 3 * look.prediction.step_s <= bound
            assert look.chunk_tokens in (128, 64, 32, 16)
        # A bound that not even a page of rows keeps, in no layout, binds nothing.
        assert outlooks(seen, MODEL, ttft_bound_s=1e-9) == free
        assert self.steps(seen, replace(EAGER, ttft_bound_ms=bound * 1e3)).chunk_tokens < 256

    def test_rows_beside_a_chunk_keep_the_itl_bound(self) -> None:
        decoding_too = [*decoding(2, 100), *prompts(2, 256)]
        seen = snapshot(decoding_too, phase=Phase.PREFILL, layout=Layout.DP)
        free = outlooks(seen, MODEL)[Layout.DP]
        bounded = outlooks(seen, MODEL, itl_bound_s=free.prediction.step_s * 0.7)[Layout.DP]
        assert bounded.chunk_tokens < free.chunk_tokens == 256


class TestPin:
    def test_goes_there_and_stays_whatever_leads(self) -> None:
        state = PolicyState(last_switch_s=0.0).with_pin(Layout.DOP)
        config = replace(EAGER, dwell_s=100.0)
        decisions = run([snapshot(LONG, time_s=float(time)) for time in range(3)], config, state)
        assert [decision.cause for decision in decisions] == [Cause.PINNED] * 3
        assert [decision.switches for decision in decisions] == [True, False, False]
        assert decisions[-1].layout_from is Layout.DOP

    def test_above_a_manual_hold_and_stale_inputs(self) -> None:
        state = PolicyState().with_manual_switch(0.0, hold_s=60.0).with_pin(Layout.CP)
        seen = snapshot(LONG, time_s=1.0, ages=InputAges(running_s=None))
        assert decide(seen, MODEL, EAGER, state)[0].switches

    def test_unpinned_again(self) -> None:
        state = PolicyState().with_pin(Layout.DP).with_pin(None)
        assert decide(snapshot(LONG), MODEL, EAGER, state)[0].layout_to is Layout.TP

    def test_infeasible_pin_is_rejected(self) -> None:
        room = pools(CP=LayoutPool(feasible=False, reason="no room for the projections"))
        decision, _ = decide(snapshot(LONG, room=room), MODEL, EAGER, PolicyState().with_pin(Layout.CP))
        assert decision.verdict is DecisionVerdict.REJECT
        assert "no room for the projections" in decision.reason

    def test_a_refused_pin_waits_for_the_dwell(self) -> None:
        config = replace(EAGER, dwell_s=5.0)
        first, state = decide(snapshot(LONG), MODEL, config, PolicyState().with_pin(Layout.CP))
        second, state = decide(snapshot(LONG, time_s=1.0), MODEL, config, state)
        third, _ = decide(snapshot(LONG, time_s=5.0), MODEL, config, state)
        assert [first.switches, second.switches, third.switches] == [True, False, True]


class TestRecords:
    def test_json_shape(self) -> None:
        decision, _ = decide(snapshot(LONG, measured_step_s=0.2), MODEL, EAGER, PolicyState())
        record = json.loads(json.dumps(decision.to_json(), allow_nan=False))
        assert {
            "time",
            "phase",
            "group",
            "verdict",
            "reason",
            "from",
            "to",
            "predicted_ms",
            "feasible",
            "cost_ms",
            "inputs",
        } <= set(record)
        assert (record["verdict"], record["from"], record["to"]) == ("SWITCH", "DP", "TP")
        assert set(record["predicted_ms"]) == {"TP", "CP", "DP", "DOP"}
        assert record["inputs"]["measured_ms"] == 200.0
        assert record["inputs"]["age_s"]["running"] == 0.0

    def test_infinite_lead_is_null(self) -> None:
        config = replace(EAGER, allowed=(Layout.CP,))
        decision, _ = decide(snapshot(LONG), MODEL, config, PolicyState())
        assert decision.to_json()["inputs"]["lead"] is None
        json.dumps(decision.to_json(), allow_nan=False)

    def test_log_collapses_equal_holds(self) -> None:
        log = DecisionLog(capacity=3)
        for decision in run([snapshot(SHORT, time_s=float(time)) for time in range(5)], EAGER):
            log.add(decision)
        assert len(log.last()) == 1
        assert log.last()[0].inputs["repeats"] == 5
        assert log.last()[0].inputs["since"] == 0.0
        assert log.last()[0].time_s == 4.0
        for decision in run([snapshot(LONG), snapshot(SHORT)] * 3, EAGER):
            log.add(decision)
        assert len(log.last()) == 3
        assert len(log.last(2)) == 2
        assert log.last(0) == ()
        assert all(decision.switches for decision in log.last())


class TestConfig:
    def test_a_file(self, tmp_path: Path) -> None:
        path, text = tmp_path / "policy.toml", '[all]\nmargin = 0.1\n[decode]\nallowed = ["TP", "DP"]\n'
        path.write_text(text)
        assert load_document(str(path)) == parse_document(text)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="off, auto or a TOML file"):
            load_document(str(tmp_path / "none.toml"))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[decode]\nmargins = 1", r"decode\.margins: unknown key; known: allowed, margin"),
            ("[decodes]\nmargin = 1", "unknown section 'decodes'; known: all, prefill, decode"),
            ("margin = 1", "unknown section 'margin'"),
            ("decode = 1", r"decode must be a section, \[decode\]"),
            ("[decode]\nmargin = 'x'", r"decode\.margin: a number is required"),
            ("[decode]\nmargin = true", r"decode\.margin: a number is required"),
            ("[decode]\nmargin = -1", r"decode\.margin: must be in \[0, 10\), got -1"),
            ("[decode]\nmargin = nan", r"decode\.margin: must be in \[0, 10\), got nan"),
            ("[decode]\nhold_s = nan", r"decode\.hold_s: must not be negative, got nan"),
            ("[decode]\nconfirm = 1.5", r"decode\.confirm: a whole number"),
            ("[decode]\nshadow = 1", r"decode\.shadow: true or false"),
            ("[decode]\nallowed = 'TP'", r"decode\.allowed: a list"),
            ("[decode]\nallowed = []", r"decode\.allowed: must name"),
            ("[decode]\nallowed = ['PP']", r"decode\.allowed: 'PP' is not a layout; known: TP, CP, DP, DOP"),
            ("[all]\ndwell_s = -1", r"all\.dwell_s: must not be negative"),
            ("[decode", "not TOML"),
        ],
    )
    def test_errors_name_the_key(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            parse_document(text, source="p.toml")
