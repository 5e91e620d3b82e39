"""The way of a sequence through registry, placement and tries, with groups that fail on purpose."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from services.router.dispatch import Dispatcher, DispatchSettings
from services.router.events import Finished, SequenceEvent, SequenceJob, Tokens
from services.router.merge import merged
from services.router.registry import Registry
from splash_core.dispatch.admission import QueueLimits
from splash_core.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    SplashError,
    Unavailable,
)
from splash_core.obs.vitals import VitalTasks
from splash_core.spec.request import SamplingParams
from tests.support.stub_worker import StubWorker

JOB = SequenceJob(request_id="r-0", prompt=(1, 2, 3), sampling=SamplingParams(max_tokens=4))


class World:
    """Two prefill and two decode groups, and a dispatcher over them."""

    def __init__(self) -> None:
        self.prefills = [StubWorker("p0", "prefill"), StubWorker("p1", "prefill")]
        self.decodes = [StubWorker("d0", "decode"), StubWorker("d1", "decode")]
        self.now = 0.0
        self.registry = Registry(
            {"prefill": self.prefills, "decode": self.decodes},
            clock=lambda: self.now,
            poll_interval_s=0.01,
            poll_timeout_s=1.0,
        )
        limits = QueueLimits(requests=3, prompt_tokens=100)
        settings = DispatchSettings(limits=limits, expected_output_tokens=8)
        self.dispatcher = Dispatcher(self.registry, settings, clock=lambda: self.now)

    async def refresh(self) -> None:
        for worker in (*self.prefills, *self.decodes):
            await self.registry.refresh(worker.address)

    async def collect(self, job: SequenceJob = JOB) -> list[SequenceEvent]:
        async with aclosing(self.dispatcher.generate(job)) as events:
            return [event async for event in events]

    @property
    def calls(self) -> list[int]:
        return [worker.calls for worker in (*self.prefills, *self.decodes)]


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        await world.refresh()
        await scenario(world)
        assert world.dispatcher.running == 0
        assert world.dispatcher.waiting.requests == 0
        assert world.dispatcher.waiting.prompt_tokens == 0
        for pair in world.registry.pairs():
            assert pair.prefill.prompt_tokens_pending == 0
        assert all(worker.closed == worker.calls for worker in world.decodes)

    asyncio.run(main())


async def three_tokens() -> AsyncGenerator[int, None]:
    for token in (7, 8, 9):
        yield token


async def endless() -> AsyncGenerator[int, None]:
    while True:
        yield 7
        await asyncio.sleep(0)


def test_tokens_then_one_end() -> None:
    async def scenario(world: World) -> None:
        for worker in world.decodes:
            worker.tokens = three_tokens
        events = await world.collect()
        assert events == [
            Tokens(tokens=(7,)),
            Tokens(tokens=(8,)),
            Tokens(tokens=(9,)),
            Finished(reason="length"),
        ]

    run(scenario)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_dead_group_is_replaced_before_the_first_token(phase: str) -> None:
    async def scenario(world: World) -> None:
        broken = {"prefill": world.prefills, "decode": world.decodes}[phase][0]
        broken.run_error = Unavailable("gone")
        for _ in range(4):
            assert (await world.collect())[-1] == Finished(reason="length")
        assert broken.calls > 0

    run(scenario)


@pytest.mark.parametrize("asks_for_scores", [False, True])
def test_an_error_about_the_decode_group_does_not_exclude_the_prefill_group(asks_for_scores: bool) -> None:
    async def scenario(world: World) -> None:
        only = world.prefills[0]
        world.prefills[1].state_name = "draining"
        only.refuse_partner = "d0"
        # Placement prefers d0.
        world.decodes[1].projected = 500
        await world.refresh()
        sampling = SamplingParams(max_tokens=4, prompt_logprobs=0 if asks_for_scores else None)
        events = await world.collect(SequenceJob(request_id="r", prompt=(1, 2), sampling=sampling))
        assert events[-1] == Finished(reason="length")
        assert world.calls == [2, 0, 1, 1]

    run(scenario)


def test_an_overloaded_prefill_group_is_not_asked_again_for_another_decode_group() -> None:
    async def scenario(world: World) -> None:
        for worker in world.prefills:
            worker.run_error = Overloaded("full", retry_after_s=7)
        with pytest.raises(Overloaded):
            await world.collect()
        assert [worker.calls for worker in world.prefills] == [1, 1]

    run(scenario)


def test_a_request_goes_to_the_groups_that_can_hold_it() -> None:
    async def scenario(world: World) -> None:
        world.decodes[0].max_request_tokens = world.prefills[1].max_request_tokens = 50
        world.decodes[0].incarnation = world.prefills[1].incarnation = "2"
        # The small decode group would be the least used.
        world.decodes[1].projected = 500
        await world.refresh()
        sampling = SamplingParams(max_tokens=100)
        for _ in range(4):
            await world.collect(SequenceJob(request_id="r", prompt=(1,) * 60, sampling=sampling))
        assert world.calls == [4, 0, 0, 4]
        # Output does not count in prefill.
        for _ in range(4):
            await world.collect(SequenceJob(request_id="r", prompt=(1,) * 40, sampling=sampling))
        assert world.calls == [6, 2, 0, 8]
        world.decodes[1].state_name = "draining"
        await world.refresh()
        with pytest.raises(Unavailable, match="none that can hold 160 tokens is ready"):
            await world.collect(SequenceJob(request_id="r", prompt=(1,) * 60, sampling=sampling))
        limits = world.registry.limits()
        assert limits is not None
        assert limits.max_model_len == 500

    run(scenario)


def test_a_request_without_max_tokens_goes_to_all_groups_and_takes_what_they_leave() -> None:
    async def scenario(world: World) -> None:
        world.decodes[0].max_request_tokens, world.decodes[0].incarnation = 50, "2"
        await world.refresh()
        sampling = SamplingParams(max_tokens=460)
        job = SequenceJob(request_id="r", prompt=(1,) * 40, sampling=sampling, open_ended=True)
        for _ in range(4):
            await world.collect(job)
        assert [worker.asked for worker in world.decodes] == [[10, 10], [460, 460]]
        # A shorter rest than `min_tokens` will not do.
        sampling = SamplingParams(max_tokens=460, min_tokens=11)
        for _ in range(4):
            await world.collect(replace(job, sampling=sampling))
        assert [worker.asked for worker in world.decodes] == [[10, 10], [460] * 6]

    run(scenario)


SCORING = SequenceJob(
    request_id="s", prompt=(1, 2, 3), sampling=SamplingParams(max_tokens=0, prompt_logprobs=0)
)


def test_scoring_needs_no_decode_group() -> None:
    async def scenario(world: World) -> None:
        # One is full, one is gone, and somebody waits for room.
        world.decodes[0].projected, world.decodes[0].running = 1000, 1
        world.decodes[1].state_name = "failed"
        await world.refresh()
        await world.registry.start(VitalTasks())
        waiting = asyncio.create_task(world.collect())
        await asyncio.sleep(0.02)
        assert (await world.collect(SCORING))[-1] == Finished(reason="length")
        world.decodes[0].state_name = "failed"
        await world.refresh()
        world.dispatcher.check_entry(sequences=1, prompt_tokens=1, scoring=True)
        assert (await world.collect(SCORING))[-1] == Finished(reason="length")
        assert world.calls == [1, 1, 0, 0]
        with pytest.raises(Unavailable):
            await waiting
        for worker in world.prefills:
            worker.state_name = "draining"
        await world.refresh()
        with pytest.raises(Unavailable, match="p0: is draining; p1: is draining"):
            world.dispatcher.check_entry(sequences=1, prompt_tokens=1, scoring=True)
        await world.registry.stop()

    run(scenario)


def test_all_dead_is_the_last_cause() -> None:
    async def scenario(world: World) -> None:
        for worker in world.decodes:
            worker.run_error = Unavailable(f"{worker.address} is gone")
        with pytest.raises(Unavailable, match="is gone"):
            await world.collect()
        assert [worker.calls for worker in world.decodes] == [1, 1]

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [InvalidRequest("bad"), ContextTooLong("long"), NotFound("none"), DeadlineExceeded("late")],
)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_other_errors_are_never_tried_again(error: SplashError, phase: str) -> None:
    async def scenario(world: World) -> None:
        workers = {"prefill": world.prefills, "decode": world.decodes}[phase]
        for worker in workers:
            worker.run_error = error
        with pytest.raises(type(error), match=str(error)):
            await world.collect()
        assert sum(worker.calls for worker in workers) == 1

    run(scenario)


def test_overload_of_one_group_is_tried_on_another() -> None:
    async def scenario(world: World) -> None:
        world.decodes[0].run_error = Overloaded("full", retry_after_s=7)
        for _ in range(3):
            assert (await world.collect())[-1] == Finished(reason="length")
        world.decodes[1].run_error = Overloaded("full too", retry_after_s=9)
        with pytest.raises(Overloaded):
            await world.collect()

    run(scenario)


def test_nothing_is_tried_again_once_a_token_was_shown() -> None:
    async def scenario(world: World) -> None:
        for worker in world.decodes:
            worker.tokens = three_tokens
            worker.run_error = Unavailable("died")
        events: list[SequenceEvent] = []

        async def read() -> None:
            async with aclosing(world.dispatcher.generate(JOB)) as stream:
                async for event in stream:
                    events.append(event)

        with pytest.raises(Unavailable, match="died"):
            await read()
        assert events == [Tokens(tokens=(token,)) for token in (7, 8, 9)]
        assert sum(worker.calls for worker in world.decodes) == 1

    run(scenario)


def test_leaving_closes_both_calls() -> None:
    async def scenario(world: World) -> None:
        for worker in world.decodes:
            worker.tokens = endless
        async with aclosing(world.dispatcher.generate(JOB)) as stream:
            async for _ in stream:
                break

    run(scenario)


def test_waits_for_room_and_is_served_in_order() -> None:
    async def scenario(world: World) -> None:
        for worker in world.decodes:
            worker.projected, worker.running = 999, 1
        await world.refresh()
        await world.registry.start(VitalTasks())
        order: list[str] = []

        async def request(name: str) -> None:
            job = SequenceJob(request_id=name, prompt=(1,) * 10, sampling=SamplingParams(max_tokens=4))
            await world.collect(job)
            order.append(name)

        tasks = [asyncio.create_task(request(f"r{index}")) for index in range(3)]
        await asyncio.sleep(0.05)
        assert order == []
        assert world.dispatcher.waiting.requests == 3
        with pytest.raises(Overloaded, match="3 requests wait"):
            world.dispatcher.check_entry(sequences=1, prompt_tokens=1)
        world.now = 1.0
        world.decodes[0].projected = 0
        await asyncio.gather(*tasks)
        assert order == ["r0", "r1", "r2"]
        assert [worker.calls for worker in world.decodes] == [3, 0]
        await world.registry.stop()

    run(scenario)


def test_retry_after_follows_the_pace_of_the_queue() -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def gated() -> AsyncGenerator[int, None]:
            await gate.wait()
            yield 1

        for _ in range(5):
            world.now += 1.0
            await world.collect()
        # What was before an idle hour says nothing.
        world.now += 3600.0
        for _ in range(5):
            world.now += 4.0
            await world.collect()
        for worker in world.decodes:
            worker.tokens = gated
        tasks = [asyncio.create_task(world.collect()) for _ in range(3)]
        await asyncio.sleep(0.02)
        with pytest.raises(Overloaded) as refused:
            world.dispatcher.check_entry(sequences=1, prompt_tokens=1)
        # Three wait, one leaves every four seconds, half should have left.
        assert refused.value.retry_after_s == pytest.approx(6.0)
        gate.set()
        await asyncio.gather(*tasks)

    run(scenario)


def test_no_worker_is_refused_at_once_with_causes() -> None:
    async def scenario(world: World) -> None:
        for worker in world.decodes:
            worker.state_name = "draining"
        await world.refresh()
        with pytest.raises(Unavailable, match="d0: is draining; d1: is draining"):
            world.dispatcher.check_entry(sequences=1, prompt_tokens=1)
        world.dispatcher.draining = True
        with pytest.raises(Unavailable, match="router is draining"):
            world.dispatcher.check_entry(sequences=1, prompt_tokens=1)

    run(scenario)


def test_groups_with_another_kv_abi_are_not_paired() -> None:
    async def scenario(world: World) -> None:
        for worker in world.decodes:
            worker.abi.dtype, worker.incarnation = "bf16", "2"
        await world.refresh()
        assert world.registry.pairs() == []
        assert "dtype: prefill has 'fp32', decode has 'bf16'" in "; ".join(world.registry.causes())

    run(scenario)


def test_a_group_in_the_wrong_role_is_not_used() -> None:
    async def scenario(world: World) -> None:
        world.prefills[0].phase, world.prefills[0].incarnation = "decode", "2"
        await world.refresh()
        assert {pair.prefill.address for pair in world.registry.pairs()} == {"p1"}
        [record] = [record for record in world.registry.records() if record.address == "p0"]
        assert record.trouble == "is a decode group but was configured as prefill"

    run(scenario)


def test_late_answers_keep_a_group_and_refusals_do_not() -> None:
    async def scenario(world: World) -> None:
        world.decodes[0].control_error = DeadlineExceeded("busy")
        world.decodes[1].control_error = Unavailable("refused")
        world.now = 5.0
        await world.refresh()
        assert {pair.decode.address for pair in world.registry.pairs()} == {"d0"}
        [record] = [record for record in world.registry.records() if record.address == "d0"]
        assert record.stalled(now_s=5.0, limit_s=10.0) is None
        assert record.stalled(now_s=15.0, limit_s=10.0) == "has not answered for 15 s"
        world.decodes[1].control_error = None
        await world.refresh()
        assert {pair.decode.address for pair in world.registry.pairs()} == {"d0", "d1"}

    run(scenario)


def test_a_new_incarnation_is_described_anew() -> None:
    async def scenario(world: World) -> None:
        await world.refresh()
        assert world.decodes[0].described == 1
        world.decodes[0].incarnation = "2"
        await world.refresh()
        assert world.decodes[0].described == 2

    run(scenario)


def test_busy_is_not_dead_and_a_stall_is() -> None:
    async def scenario(world: World) -> None:
        world.decodes[0].step_age_s, world.decodes[0].running = 3.0, 60
        world.decodes[1].step_age_s = 61.0
        await world.refresh()
        stalled = {
            record.address: record.stalled(now_s=0.0, limit_s=60.0) for record in world.registry.records()
        }
        assert stalled["d0"] is None
        assert stalled["p0"] is None
        assert stalled["d1"] == "has work but finished no step for 61 s"

    run(scenario)


# ------------------------------------------------------------------------------------------- merging


async def numbers(first: int, closed: list[int], *, fail: bool = False) -> AsyncGenerator[int, None]:
    try:
        for number in range(first, first + 3):
            await asyncio.sleep(0)
            yield number
        if fail:
            raise Unavailable("source failed")
    finally:
        closed.append(first)


def test_merging_keeps_each_order_and_closes_all() -> None:
    async def main() -> None:
        closed: list[int] = []
        sources = [numbers(first, closed) for first in (0, 10, 20)]
        found = [number async for number in merged(sources)]
        assert sorted(found) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
        for first in (0, 10, 20):
            assert [number for number in found if first <= number < first + 3] == list(
                range(first, first + 3)
            )
        assert sorted(closed) == [0, 10, 20]

    asyncio.run(main())


def test_one_failure_ends_the_merge_and_closes_all() -> None:
    async def endless_source(closed: list[int]) -> AsyncGenerator[int, None]:
        try:
            while True:
                await asyncio.sleep(0)
                yield 0
        finally:
            closed.append(-1)

    async def main() -> None:
        closed: list[int] = []
        sources = [numbers(0, closed, fail=True), endless_source(closed)]

        async def read() -> None:
            async with aclosing(merged(sources)) as stream:
                async for _ in stream:
                    pass

        with pytest.raises(Unavailable, match="source failed"):
            await read()
        assert sorted(closed) == [-1, 0]

    asyncio.run(main())


def test_a_slow_reader_holds_the_sources_back() -> None:
    async def main() -> None:
        made = [0]

        async def source() -> AsyncGenerator[int, None]:
            for number in range(1000):
                made[0] = number
                yield number

        async with aclosing(merged([source()])) as stream:
            assert await anext(stream) == 0
            await asyncio.sleep(0.01)
            assert made[0] < 50

    asyncio.run(main())
