"""The leader's loop over engines in this process: no idle steps, no lost request, no hang at the end."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from splash_core.config import GroupSettings
from splash_core.engine.fake import FakeEngine, fake_token
from splash_core.errors import ConfigError, GroupFailed, Infeasible, InvariantBroken, SplashError, Unavailable
from splash_core.ids import RankId, RequestId, StepId
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.leader.build import GroupBlueprint, draw_blueprint
from splash_core.leader.leader import GroupCondition, GroupLeader
from splash_core.leader.pace import StepPace
from splash_core.leader.part import Wait
from splash_core.leader.ranks import RankPool
from splash_core.leader.steering import Steering
from splash_core.policy.snapshot import Phase, WaitingSequence
from splash_core.scheduling.events import PrefilledEvent
from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


class Ranks:
    """Engines of this process in place of rank processes."""

    def __init__(self, blueprint: GroupBlueprint) -> None:
        count = blueprint.settings.ranks
        self._engines = [
            FakeEngine(rank=RankId(rank), num_ranks=count, vocab=blueprint.spec.vocab, page_size=8)
            for rank in range(count)
        ]
        self._failed: asyncio.Future[GroupFailed] = asyncio.get_running_loop().create_future()
        self.steps: list[StepPlan] = []
        self.num_finished = 0
        self.most_under_way = 0
        self.hang = asyncio.Event()
        self.hang.set()

    @property
    def failure(self) -> GroupFailed | None:
        return self._failed.result() if self._failed.done() else None

    async def wait_failed(self) -> GroupFailed:
        return await asyncio.shield(self._failed)

    def fail(self, cause: str) -> None:
        if not self._failed.done():
            self._failed.set_result(GroupFailed(cause))

    async def begin(self, plan: StepPlan) -> None:
        self.steps.append(plan)
        self.most_under_way = max(self.most_under_way, len(self.steps) - self.num_finished)

    async def finish(self, step: StepId, *, timeout_s: float) -> tuple[StepResult, ...]:
        del timeout_s
        plan = self.steps[self.num_finished]
        assert plan.step == step, "steps end in the order in which they were sent"
        hang = asyncio.ensure_future(self.hang.wait())
        await asyncio.wait({hang, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        hang.cancel()
        if self.failure is not None:
            raise self.failure
        self.num_finished += 1
        return tuple(engine.step(plan) for engine in self._engines)


class Part:
    """A phase's part that remembers what it was told."""

    def __init__(self) -> None:
        self.boundaries = 0
        self.planned_steps: list[StepPlan] = []
        self.errors: list[SplashError] = []
        self.waiting: tuple[WaitingSequence, ...] = ()

    def queued(self) -> tuple[WaitingSequence, ...]:
        return self.waiting

    def before_step(self) -> None:
        self.boundaries += 1

    def planned(self, plan: StepPlan) -> None:
        self.planned_steps.append(plan)

    def failed(self, error: GroupFailed) -> None:
        self.errors.append(error)

    def waits(self) -> tuple[Wait, ...]:
        return ()


@asynccontextmanager
async def _running(
    model: Path, *, shared_link_bps: float = 0.0, **settings: Any
) -> AsyncIterator[tuple[GroupLeader, Ranks, Part]]:
    """A prefill leader with its loop running; its end is awaited at exit."""
    fields = {"model": str(model), "page_size": 8, "kv_bytes": 1 << 19, "chunk_tokens": 16, "policy": "off"}
    blueprint = draw_blueprint(GroupSettings(**{**fields, **settings}), Phase.PREFILL)
    loop = asyncio.get_running_loop()
    scheduler = blueprint.scheduler(loop.time)
    pace = StepPace()
    steering = Steering(
        scheduler,
        model=blueprint.cost_model(),
        policy=blueprint.policy,
        pace=pace,
        clock=loop.time,
    )
    ranks, part = Ranks(blueprint), Part()
    leader = GroupLeader(
        scheduler,
        cast("RankPool", ranks),
        steering,
        pace,
        step_timeout_s=5.0,
        shared_link_bps=shared_link_bps,
    )
    leader.join(part)
    task = asyncio.ensure_future(leader.run())
    await asyncio.sleep(0)
    yield leader, ranks, part
    leader.stop()
    await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 5)


def _run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def _add(leader: GroupLeader, prompt: tuple[int, ...], name: str = "r") -> Any:
    seq = leader.scheduler.add(RequestId(name), prompt, GREEDY)
    return seq, leader.open_stream(seq)


def test_a_prompt_runs_in_chunks_and_an_idle_group_sends_no_step(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, ranks, part):
            prompt = tuple(range(40))
            seq, stream = _add(leader, prompt)
            event = await stream.next()
            assert isinstance(event, PrefilledEvent)
            assert event.first_token == fake_token(prompt, seed=0, vocab=320)
            assert [plan.num_rows for plan in ranks.steps] == [16, 16, 8]
            assert part.planned_steps == ranks.steps
            assert stream.first_step_at is not None
            leader.release(seq)
            await asyncio.sleep(0.15)
            assert len(ranks.steps) == 3
            assert leader.step_age_s == 0.0
            assert leader.scheduler.audit().pages_held == 0

    _run(scenario())


def test_the_next_chunk_is_with_the_ranks_before_this_one_is_back(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, ranks, _):
            ranks.hang.clear()
            seq, stream = _add(leader, tuple(range(40)))
            while len(ranks.steps) < 2:
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            # Two of three chunks: one is computed, one is ready.
            assert [plan.num_rows for plan in ranks.steps] == [16, 16]
            assert ranks.num_finished == 0
            ranks.hang.set()
            assert isinstance(await stream.next(), PrefilledEvent)
            assert ranks.most_under_way == 2
            leader.release(seq)

    _run(scenario())


@pytest.mark.parametrize("shared_link_bps", [0.0, 1e9])
def test_writers_are_told_of_steps_only_where_switches_use_their_link(
    tiny_v3: Path, monkeypatch: pytest.MonkeyPatch, shared_link_bps: float
) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3, shared_link_bps=shared_link_bps) as (leader, _, _):
            told: list[int] = []
            monkeypatch.setattr(leader.notices, "under_way", lambda plans: told.append(len(plans)))
            seq, stream = _add(leader, (1, 2, 3))
            assert isinstance(await stream.next(), PrefilledEvent)
            assert told == ([1, 0] if shared_link_bps else [])
            leader.release(seq)

    _run(scenario())


def test_a_loop_that_is_stopped_waits_for_the_steps_under_way(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, ranks, _):
            _add(leader, tuple(range(70)))
            while len(ranks.steps) < 2:
                await asyncio.sleep(0)
            leader.stop()
        assert ranks.num_finished == len(ranks.steps) < 5
        assert leader.failure is None

    _run(scenario())


def test_a_cancel_during_a_step_frees_its_pages_when_the_step_ends(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, ranks, _):
            ranks.hang.clear()
            seq, _stream = _add(leader, tuple(range(12)))
            while not ranks.steps:
                await asyncio.sleep(0)
            assert leader.step_age_s > 0
            leader.cancel(seq)
            assert leader.scheduler.audit().pages_held > 0
            ranks.hang.set()
            while leader.scheduler.count():
                await asyncio.sleep(0)
            assert leader.scheduler.audit().pages_held == 0

    _run(scenario())


def test_a_dead_rank_is_told_to_every_open_request_and_wish(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, ranks, part):
            ranks.hang.clear()
            streams = [_add(leader, tuple(range(5 + i)), f"r{i}")[1] for i in range(3)]
            wish = leader.steering.set_layout(Layout.CP, SwitchMode.BLOCKING, hold_s=60)
            await asyncio.sleep(0.01)
            ranks.fail("rank 1 was killed by SIGKILL")
            for stream in streams:
                with pytest.raises(GroupFailed, match="rank 1"):
                    await asyncio.wait_for(stream.next(), 2)
            with pytest.raises(GroupFailed):
                await asyncio.wait_for(wish, 2)
            assert [str(error) for error in part.errors] == ["rank 1 was killed by SIGKILL"]
            assert leader.condition is GroupCondition.FAILED
            with pytest.raises(GroupFailed):
                leader.check_open()

    _run(scenario())


def test_a_rank_that_dies_while_the_group_is_idle_is_noticed(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, ranks, part):
            ranks.fail("rank 0 exited with code 1")
            while not part.errors:
                await asyncio.sleep(0)
            assert leader.failure is not None

    _run(scenario())


def test_a_bug_in_the_loop_ends_the_group_instead_of_hanging_it(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, ranks, part):

            def broken() -> None:
                raise KeyError("nobody expected this")

            part.before_step = broken  # type: ignore[method-assign]
            _, stream = _add(leader, (1, 2, 3))
            with pytest.raises(GroupFailed, match="nobody expected this"):
                await asyncio.wait_for(stream.next(), 2)
            assert ranks.failure is not None

    _run(scenario())


def test_a_switch_runs_in_an_idle_group_and_is_answered(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, ranks, _):
            for layout, epoch in ((Layout.CP, 1), (Layout.DOP, 2), (Layout.TP, 3)):
                wish = leader.steering.set_layout(layout, SwitchMode.OVERLAPPED, hold_s=60)
                leader.wake()
                outcome = await asyncio.wait_for(wish, 2)
                assert (outcome.layout_to, outcome.epoch) == (layout, epoch)
            assert [plan.num_rows for plan in ranks.steps] == [0, 0, 0]

    _run(scenario())


def test_draining_refuses_new_requests_and_waits_for_open_ones(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, _, part):
            leader.check_open()
            seq, stream = _add(leader, (1, 2, 3))
            await stream.next()
            part.waiting = (WaitingSequence(prompt_tokens=3),)
            assert await leader.drain(0.1) == 2
            with pytest.raises(Unavailable, match="draining"):
                leader.check_open()
            part.waiting = ()
            leader.release(seq)
            assert await leader.drain(2.0) == 0

    _run(scenario())


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"ranks": 3, "layout": "TP"}, Infeasible, ("8 heads", "--layout")),
        ({"ranks": 0}, ConfigError, ("--ranks", "at least 1")),
        ({"layouts": "TP,XP"}, ConfigError, ("'TP,XP'", "TP, CP, DP, DOP")),
        ({"layouts": "TP,DP", "layout": "CP"}, Infeasible, ("--layout CP", "not among", "--layout TP")),
        ({"ranks": 3, "layouts": "TP,DOP"}, Infeasible, ("--layouts TP,DOP", "8 heads")),
        ({"kv_bytes": 10}, Infeasible, ("holds no page", "nearest")),
        ({"max_model_len": 10**6}, Infeasible, ("--max-model-len", "nearest")),
        ({"admission_overcommit": 0.5}, ConfigError, ("--admission-overcommit", "at least 1")),
        ({"nnodes": 2}, ConfigError, ("--nnodes 2", "one host", "leave --nnodes")),
        ({"model": "no-such"}, ConfigError, ("no-such", "splash model fetch")),
    ],
)
def test_a_blueprint_says_what_cannot_work_and_the_remedy(
    tiny_v3: Path, settings: dict[str, Any], error: type[SplashError], words: tuple[str, ...]
) -> None:
    fields = {"model": str(tiny_v3), "page_size": 8, "kv_bytes": 1 << 19}
    with pytest.raises(error) as raised:
        draw_blueprint(GroupSettings(**{**fields, **settings}), Phase.PREFILL)
    assert all(word in str(raised.value) for word in words)


def test_a_group_whose_heads_do_not_split_starts_in_a_layout_that_fits(tiny_v3: Path) -> None:
    settings = GroupSettings(model=str(tiny_v3), page_size=8, kv_bytes=1 << 19, ranks=3)
    blueprint = draw_blueprint(settings, Phase.PREFILL)
    assert blueprint.layout in (Layout.CP, Layout.DP)
    assert set(blueprint.infeasible) == {Layout.TP, Layout.DOP}
    assert set(blueprint.scheduling.layouts) == {Layout.CP, Layout.DP}


def test_a_group_runs_the_layouts_that_it_is_told_to_offer(tiny_v3: Path) -> None:
    fields: dict[str, Any] = {"model": str(tiny_v3), "page_size": 8, "kv_bytes": 1 << 19}
    few = draw_blueprint(GroupSettings(**fields, layouts="DOP, cp"), Phase.PREFILL)
    assert few.scheduling.layouts == (Layout.CP, Layout.DOP)
    assert few.layout is Layout.CP
    assert few.shown_layouts == STANDARD_LAYOUTS
    assert few.refusal(Layout.TP) == "TP is not among the group's --layouts"
    assert draw_blueprint(GroupSettings(**fields), Phase.PREFILL).scheduling.layouts == STANDARD_LAYOUTS


def test_kv_bytes_are_room_beside_the_weights(tiny_v3: Path) -> None:
    settings = GroupSettings(model=str(tiny_v3), page_size=8, kv_bytes=1 << 19)
    arena = draw_blueprint(settings, Phase.DECODE).arena
    assert len(arena.ordinary) == (1 << 19) // arena.slot_bytes


def test_a_plan_that_the_engines_reject_ends_the_group(tiny_v3: Path) -> None:
    async def scenario() -> None:
        async with _running(tiny_v3) as (leader, ranks, _):

            async def wrong(step: StepId, *, timeout_s: float) -> tuple[StepResult, ...]:
                raise InvariantBroken("rows do not continue the history")

            ranks.finish = wrong  # type: ignore[method-assign]
            _, stream = _add(leader, (1, 2, 3))
            with pytest.raises(GroupFailed, match="do not continue"):
                await asyncio.wait_for(stream.next(), 2)

    _run(scenario())
