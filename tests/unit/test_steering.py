"""Who moves a group: one wish at a time, one answer to it, and a record of what the policy thought."""

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, cast

import pytest

from splash_core.cost.model import CostModel
from splash_core.cost.precision import named_precision
from splash_core.cost.profile import analytical_profile
from splash_core.errors import Blocked, Conflict, GroupFailed
from splash_core.ids import Epoch, RankId, StepId
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.leader.pace import StepPace
from splash_core.leader.steering import Steering
from splash_core.policy.config import PolicyConfig
from splash_core.policy.document import PolicyDocument, Section
from splash_core.policy.in_force import PolicyInForce
from splash_core.policy.keys import Value
from splash_core.policy.snapshot import LayoutPool, Phase, RunningSequence, Snapshot
from splash_core.scheduling.events import SwitchDeferred, SwitchedEvent, SwitchRefusedEvent
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.step import StepPlan
from splash_core.spec.catalogue import named_spec
from splash_core.spec.hardware import named_gpu
from splash_core.switch.manifest import Refusal, SwitchMode

_REFUSAL = Refusal(
    layout_from=Layout.TP,
    layout_to=Layout.DP,
    reason="borrowed slots do not fit",
    rank=RankId(1),
    needed_slots=5,
    free_slots=2,
)


def held_policy(
    config: PolicyConfig, *, enabled: bool = True, number: int = 0, **values: Value
) -> PolicyInForce:
    """A version of the policy as `decode-0` has it."""
    own = {item.name: getattr(config, item.name) for item in fields(config)}
    document = PolicyDocument(shared=Section(values={**own, "enabled": enabled, **values}))
    return PolicyInForce(
        phase=Phase.DECODE, group="decode-0", document=document, number=number, digest=document.digest
    )


class Scheduler:
    """Answers `request_switch` from a script."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.asked: list[Layout] = []
        self.modes: list[SwitchMode] = []
        self.chunks: list[int | None] = []
        self.layout = Layout.TP
        self.copying_ahead = False

    def limit_chunk(self, rows: int | None) -> None:
        self.chunks.append(rows)

    def request_switch(self, layout: Layout, mode: SwitchMode = SwitchMode.OVERLAPPED) -> object:
        self.asked.append(layout)
        self.modes.append(mode)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench:
    """A steering with its scripted scheduler and a clock that the test moves."""

    def __init__(self, *answers: object, enabled: bool = False, policy: PolicyConfig | None = None) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(*answers)
        gpu = named_gpu("cpu")
        self.steering = Steering(
            cast("GroupScheduler", self.scheduler),
            model=CostModel(
                spec=named_spec("deepseek-v2-lite"),
                precision=named_precision("fp32"),
                profile=analytical_profile(gpu, dtype="fp32"),
                num_ranks=2,
            ),
            policy=held_policy(policy or PolicyConfig(confirm=1, dwell_s=0.0, margin=0.0), enabled=enabled),
            pace=StepPace(),
            clock=lambda: self.now,
        )

    def boundary(self, layout: Layout = Layout.TP) -> None:
        self.steering.at_boundary(lambda: _snapshot(layout, self.now))


def _snapshot(layout: Layout, now: float) -> Snapshot:
    pool = LayoutPool(feasible=True, total_tokens=100_000, free_tokens=90_000)
    running = tuple(
        RunningSequence(context_tokens=4000, step_rows=1, projected_output=4000, owner=RankId(i % 2))
        for i in range(16)
    )
    return Snapshot(
        time_s=now,
        group="decode-0",
        phase=Phase.DECODE,
        layout=layout,
        num_ranks=2,
        page_size=64,
        chunk_tokens=512,
        running=running,
        pools=MappingProxyType(dict.fromkeys(STANDARD_LAYOUTS, pool)),
    )


def _switched(to: Layout = Layout.DP, frm: Layout = Layout.TP) -> SwitchedEvent:
    return SwitchedEvent(
        layout_from=frm,
        layout_to=to,
        epoch=Epoch(4),
        mode=SwitchMode.BLOCKING,
        bytes_received=77,
        step_s=0.25,
    )


_AHEAD = SwitchMode.PRECOPIED
_PLAN = StepPlan(step=StepId(1), epoch=Epoch(4), layout=Layout.DP)


def _in_loop(scenario: Callable[[], Any]) -> None:
    async def run() -> None:
        await scenario()

    asyncio.run(run())


def test_a_wish_is_answered_with_the_numbers_of_its_switch() -> None:
    async def scenario() -> None:
        bench = Bench(None)
        answer = bench.steering.set_layout(Layout.DP, SwitchMode.BLOCKING, hold_s=60)
        bench.boundary()
        assert not answer.done()
        # That it waited for the step before, as other steps do not, is what it cost too.
        bench.steering.on_switched(_switched(), _PLAN, paused_s=0.125)
        outcome = await answer
        assert (outcome.layout_from, outcome.layout_to, outcome.epoch) == (Layout.TP, Layout.DP, 4)
        assert (outcome.bytes_received, outcome.exposed_ms, outcome.mode) == (77, 375.0, "blocking")
        assert not bench.steering.pending

    _in_loop(scenario)


def test_the_present_layout_is_answered_at_once_and_moves_nothing() -> None:
    async def scenario() -> None:
        event = SwitchedEvent(
            layout_from=Layout.TP,
            layout_to=Layout.TP,
            epoch=Epoch(3),
            mode=SwitchMode.BLOCKING,
            bytes_received=0,
        )
        bench = Bench(event)
        answer = bench.steering.set_layout(Layout.TP, SwitchMode.BLOCKING, hold_s=60)
        bench.boundary()
        outcome = await answer
        assert (outcome.epoch, outcome.mode, outcome.exposed_ms) == (3, "", 0.0)

    _in_loop(scenario)


@pytest.mark.parametrize("answers", [(_REFUSAL,), (Conflict("DP is not feasible"),)])
def test_a_refusal_reaches_whoever_asked(answers: tuple[object, ...]) -> None:
    async def scenario() -> None:
        bench = Bench(*answers)
        answer = bench.steering.set_layout(Layout.DP, SwitchMode.BLOCKING, hold_s=60)
        bench.boundary()
        with pytest.raises(Conflict) as raised:
            await answer
        if isinstance(answers[0], Refusal):
            assert "rank 1 needs 5 slots, 2 are free" in str(raised.value)
        assert not bench.steering.pending

    _in_loop(scenario)


def test_a_deferred_switch_is_asked_for_again_and_given_up_with_its_numbers() -> None:
    async def scenario() -> None:
        bench = Bench(
            SwitchDeferred(refusal=_REFUSAL),
            SwitchDeferred(refusal=_REFUSAL),
            SwitchDeferred(refusal=_REFUSAL),
        )
        answer = bench.steering.set_layout(Layout.DP, SwitchMode.BLOCKING, hold_s=60)
        for now in (0.0, 1.0):
            bench.now = now
            bench.boundary()
            assert bench.steering.pending
        bench.now = 40.0
        bench.boundary()
        with pytest.raises(Conflict, match="5 slots"):
            await answer
        assert bench.scheduler.asked == [Layout.DP] * 3

    _in_loop(scenario)


def test_a_refusal_at_the_boundary_that_may_pass_keeps_the_wish() -> None:
    async def scenario() -> None:
        bench = Bench(None, None)
        answer = bench.steering.set_layout(Layout.DP, SwitchMode.BLOCKING, hold_s=60)
        bench.boundary()
        bench.steering.on_refused(SwitchRefusedEvent(refusal=_REFUSAL, retry=True))
        bench.boundary()
        assert not answer.done()
        bench.steering.on_refused(SwitchRefusedEvent(refusal=_REFUSAL, retry=False))
        with pytest.raises(Conflict):
            await answer

    _in_loop(scenario)


def test_one_wish_at_a_time_and_none_against_a_pin() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.steering.set_layout(Layout.DP, SwitchMode.BLOCKING, hold_s=60)
        with pytest.raises(Blocked, match="under way"):
            bench.steering.set_layout(Layout.CP, SwitchMode.BLOCKING, hold_s=60)
        other = Bench()
        other.steering.pin(Layout.TP)
        with pytest.raises(Blocked, match="pinned to TP"):
            other.steering.set_layout(Layout.CP, SwitchMode.BLOCKING, hold_s=60)

    _in_loop(scenario)


def test_setting_the_present_layout_calls_off_a_switch_that_copies_ahead() -> None:
    async def scenario() -> None:
        stay = SwitchedEvent(
            layout_from=Layout.TP, layout_to=Layout.TP, epoch=Epoch(3), mode=_AHEAD, bytes_received=0
        )
        bench = Bench(None, stay)
        first = bench.steering.set_layout(Layout.DP, _AHEAD, hold_s=60)
        bench.boundary()
        with pytest.raises(Blocked, match="under way"):
            bench.steering.set_layout(Layout.TP, _AHEAD, hold_s=60)
        bench.scheduler.copying_ahead = True
        with pytest.raises(Blocked, match="under way"):
            bench.steering.set_layout(Layout.CP, _AHEAD, hold_s=60)
        second = bench.steering.set_layout(Layout.TP, SwitchMode.OVERLAPPED, hold_s=60)
        with pytest.raises(Blocked, match="called off: TP"):
            await first
        bench.boundary()
        assert (await second).layout_to is Layout.TP
        assert bench.scheduler.asked == [Layout.DP, Layout.TP]

    _in_loop(scenario)


def test_a_pin_of_the_present_layout_calls_off_a_switch_that_copies_ahead() -> None:
    async def scenario() -> None:
        bench = Bench(None, None)
        answer = bench.steering.set_layout(Layout.DP, _AHEAD, hold_s=60)
        bench.boundary()
        bench.scheduler.copying_ahead = True
        bench.steering.pin(Layout.TP)
        with pytest.raises(Blocked, match="pinned"):
            await answer
        assert bench.scheduler.asked == [Layout.DP, Layout.TP]

    _in_loop(scenario)


def test_an_outcome_says_what_was_copied_ahead_and_why_not() -> None:
    async def scenario() -> None:
        bench = Bench(None)
        answer = bench.steering.set_layout(Layout.DP, _AHEAD, hold_s=60)
        bench.boundary()
        event = replace(_switched(), precopied_bytes=55, fallback="rank 1 needs 2 slots")
        bench.steering.on_switched(event, _PLAN, paused_s=0.0)
        outcome = await answer
        assert (outcome.bytes_received, outcome.precopied_bytes) == (77, 55)
        assert outcome.fallback == "rank 1 needs 2 slots"
        assert "77 bytes moved, 55 copied ahead; not precopied: rank 1" in event.summary()

    _in_loop(scenario)


def test_a_wish_whose_asker_left_is_dropped() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.steering.set_layout(Layout.DP, SwitchMode.BLOCKING, hold_s=60).cancel()
        bench.boundary()
        assert bench.scheduler.asked == []
        assert not bench.steering.pending

    _in_loop(scenario)


def test_a_pin_is_pursued_even_with_the_policy_off() -> None:
    bench = Bench(None)
    bench.boundary()
    assert bench.steering.decisions(0) == ()
    bench.steering.pin(Layout.CP)
    bench.boundary()
    assert bench.scheduler.asked == [Layout.CP]
    assert bench.steering.decisions(1)[0].layout_to is Layout.CP
    bench.steering.pin(None)
    assert not bench.steering.watches


def test_the_policy_switches_records_why_and_keeps_off_after_a_manual_set() -> None:
    async def scenario() -> None:
        bench = Bench(_REFUSAL, None, enabled=True)
        bench.boundary(Layout.DP)
        record = bench.steering.decisions(1)[0]
        assert record.verdict == "REJECT"
        assert "5 slots" in record.reason
        assert set(record.predicted_ms) == set(STANDARD_LAYOUTS)
        answer = bench.steering.set_layout(Layout.CP, SwitchMode.BLOCKING, hold_s=60)
        bench.boundary(Layout.DP)
        bench.steering.on_switched(_switched(Layout.CP, Layout.DP), _PLAN, paused_s=0.0)
        await answer
        bench.now = 30.0
        bench.boundary(Layout.CP)
        assert bench.steering.decisions(1)[0].cause == "manual_hold"
        assert len(bench.scheduler.asked) == 2

    _in_loop(scenario)


@pytest.mark.parametrize(("hold_s", "held_until"), [(None, 5.0), (0.0, 0.0), (9.0, 9.0)])
def test_a_manual_set_holds_for_the_policys_time_unless_it_says_another(
    hold_s: float | None, held_until: float
) -> None:
    async def scenario() -> None:
        policy = PolicyConfig(confirm=1, dwell_s=0.0, margin=0.0, hold_s=5.0, interval_s=0.01)
        bench = Bench(None, *[_REFUSAL] * 9, enabled=True, policy=policy)
        answer = bench.steering.set_layout(Layout.CP, SwitchMode.BLOCKING, hold_s=hold_s)
        bench.boundary(Layout.DP)
        bench.steering.on_switched(_switched(Layout.CP, Layout.DP), _PLAN, paused_s=0.0)
        await answer
        held: dict[float, bool] = {}
        for now in (0.1, 4.9, 5.1, 8.9, 9.1):
            bench.now = now
            bench.boundary(Layout.CP)
            held[now] = bench.steering.decisions(1)[0].cause == "manual_hold"
        assert held == {now: now < held_until for now in held}

    _in_loop(scenario)


def test_a_failed_group_answers_the_open_wish() -> None:
    async def scenario() -> None:
        bench = Bench()
        answer = bench.steering.set_layout(Layout.DP, SwitchMode.BLOCKING, hold_s=60)
        bench.steering.fail(GroupFailed("rank 0 died"))
        with pytest.raises(GroupFailed, match="rank 0"):
            await answer

    _in_loop(scenario)


def test_the_policys_way_is_the_schedulers_and_a_late_refusal_is_recorded() -> None:
    bench = Bench(None, enabled=True, policy=PolicyConfig(confirm=1, dwell_s=0.0, margin=0.0))
    bench.boundary(Layout.DP)
    (record,) = bench.steering.decisions(0)
    assert record.switches
    assert bench.scheduler.modes == [record.executor.mode]
    late = replace(_REFUSAL, layout_to=record.layout_to)
    bench.steering.on_refused(SwitchRefusedEvent(refusal=late, retry=False))
    bench.steering.on_refused(SwitchRefusedEvent(refusal=late, retry=False))
    assert [entry.verdict for entry in bench.steering.decisions(0)] == ["SWITCH", "REJECT"]
    assert "5 slots" in bench.steering.decisions(1)[0].reason
