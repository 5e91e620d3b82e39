"""Handoffs between real processes while clients leave: nothing is kept, and nothing is told wrongly."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from splash_core.pb import control_pb2, decode_pb2, prefill_pb2
from tests.support.fake_groups import (
    FakeRouter,
    Outcome,
    await_ready,
    expected_tokens,
    fake_router,
    greedy,
    running,
    start_group,
)

pytestmark = pytest.mark.e2e
PAGE_SIZE = 8
WITHIN_S = 30


@pytest.fixture(scope="module")
def groups(transport: str, tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Steps long enough for requests to leave between chunks, and layer ranges of one layer."""
    run_dir = tmp_path_factory.mktemp("s")
    flags: dict[str, object] = {"queue-requests": 256, "max-running": 32, "chunk-tokens": 24}
    flags |= {"push-range-bytes": 1, "transport": transport}
    children = [
        start_group(
            "prefill", tiny_v3, run_dir, name="prefill-0", flags={**flags, "ranks": 2, "fake-step-s": 0.01}
        ),
        start_group(
            "decode", tiny_v3, run_dir, name="decode-0", flags={**flags, "ranks": 4, "fake-step-s": 0.002}
        ),
    ]
    with running(*children):
        await_ready(run_dir, *children)
        yield run_dir


def _prompt(index: int, length: int = 60) -> list[int]:
    return [(7 * index + position) % 300 for position in range(length)]


async def _traffic(router: FakeRouter) -> dict[str, float]:
    """The prefill group's handoff counts, over all peers."""
    state = await router.prefill_control.GetState(control_pb2.StateRequest())
    totals: dict[str, float] = {}
    for sample in state.traffic:
        if sample.traffic == "handoff":
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


async def _settled_traffic(router: FakeRouter) -> dict[str, float]:
    """Ranks tell their counts now and then: wait until nothing changes and nothing is under way."""
    before: dict[str, float] = {}
    for _ in range(100):
        now = await _traffic(router)
        if now == before and now.get("in_flight") == 0:
            return now
        before = now
        await asyncio.sleep(0.4)
    raise AssertionError(f"pushes go on without requests: {before}")


def test_no_transfer_fails_at_the_admitted_load_and_one_copy_of_each_page_crosses(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups) as router:
            described = await router.decode_control.Describe(control_pb2.DescribeRequest())
            slots = (await router.audits())[1].ranks[0].slots
            page_bytes = described.ranks[0].arena_bytes // slots
            before = await _settled_traffic(router) if await _traffic(router) else {}
            pages = 0
            for layout in ("TP", "DP"):
                await router.decode_control.SetLayout(control_pb2.SetLayoutRequest(layout=layout))
                for concurrency in (1, 4, 16, 64):
                    lengths = [20 + 5 * (index % 9) for index in range(concurrency)]
                    jobs = [
                        router.generate(f"c{index}", _prompt(index, length), greedy(4))
                        for index, length in enumerate(lengths)
                    ]
                    for index, outcome in enumerate(await asyncio.gather(*jobs)):
                        assert outcome.tokens == expected_tokens(_prompt(index, lengths[index]), 4)
                    pages += sum(-(-length // PAGE_SIZE) for length in lengths)
            after = await _settled_traffic(router)
            assert after["failures_total"] == before.get("failures_total", 0)
            assert after["bytes_total"] - before.get("bytes_total", 0) == pages * page_bytes
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


def test_pages_leave_while_later_chunks_are_computed(groups: Path) -> None:
    """Seen from outside: decode's ranks have been written before the prompt is computed."""

    async def scenario() -> None:
        async with fake_router(groups) as router:
            before = (await _settled_traffic(router))["bytes_total"] if await _traffic(router) else 0.0
            call = router.decode.Generate(
                decode_pb2.DecodeRequest(request_id="long", prompt=_prompt(1, 400), sampling=greedy(2))
            )
            lease = (await call.read()).lease
            run = asyncio.ensure_future(
                _awaited(
                    router.prefill.Run(
                        prefill_pb2.PrefillRequest(
                            request_id="long", prompt=_prompt(1, 400), sampling=greedy(2), lease=lease
                        )
                    )
                )
            )
            early = 0
            while not run.done():
                audit = (await router.audits())[0]
                early += bool(audit.pushes) and not run.done()
                await asyncio.sleep(0.002)
            result = await run
            assert early > 3, "no push was seen before the prompt was computed"
            assert result.transfer_s < result.prefill_s
            after = await _settled_traffic(router)
            assert after["bytes_total"] > before
            call.cancel()
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


async def _awaited(call: Any) -> prefill_pb2.PrefillResult:
    return await call


def test_ninety_in_a_hundred_requests_leave_while_prompts_are_computed(groups: Path) -> None:
    """Decode's reservations return to zero within two seconds, and those who stay get their tokens."""

    async def leaves(router: FakeRouter, index: int, delay_s: float) -> None:
        outcome = Outcome()
        job = asyncio.ensure_future(router.generate(f"a{index}", _prompt(index), greedy(8), outcome))
        await asyncio.sleep(delay_s)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        assert outcome.finish == "" or len(outcome.tokens) == 8, "an abort was told as an end"

    async def stays(router: FakeRouter, index: int) -> None:
        outcome = await router.generate(f"s{index}", _prompt(index), greedy(8))
        assert (outcome.tokens, outcome.finish) == (expected_tokens(_prompt(index), 8), "length")

    async def scenario() -> None:
        draw = random.Random(3)
        async with fake_router(groups) as router:
            jobs = [
                leaves(router, index, draw.uniform(0.0, 0.6)) if index % 10 else stays(router, index)
                for index in range(200)
            ]
            await asyncio.gather(*jobs)
            await router.until_empty(within_s=2)
            outcome = await router.generate("after", _prompt(1), greedy(5))
            assert outcome.tokens == expected_tokens(_prompt(1), 5)
            assert (await _settled_traffic(router))["in_flight"] == 0

    asyncio.run(scenario())


def test_an_abort_of_prefill_alone_is_not_an_end_and_another_prefill_may_take_over(groups: Path) -> None:
    """The decode call goes on waiting; the lease, abandoned by its first writer, is claimed anew."""

    async def scenario() -> None:
        async with fake_router(groups) as router:
            prompt = _prompt(5, 400)
            call = router.decode.Generate(
                decode_pb2.DecodeRequest(request_id="twice", prompt=prompt, sampling=greedy(6))
            )
            lease = (await call.read()).lease
            reading = asyncio.ensure_future(_read(call))
            request = prefill_pb2.PrefillRequest(
                request_id="twice", prompt=prompt, sampling=greedy(6), lease=lease
            )
            first = router.prefill.Run(request)
            waiting = asyncio.ensure_future(_awaited(first))
            async with asyncio.timeout(WITHIN_S):
                while not (await router.audits())[0].pushes:
                    await asyncio.sleep(0.002)
                first.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                while [entry.state for entry in (await router.audits())[1].leases] != ["granted"]:
                    await asyncio.sleep(0.005)
            assert not reading.done(), "an abort was told as an end"
            await router.prefill.Run(request)
            tokens, reason = await reading
            assert (tokens, reason) == (expected_tokens(prompt, 6), "length")
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


async def _read(call: Any) -> tuple[list[int], str]:
    tokens: list[int] = []
    while True:
        event = await call.read()
        tokens.extend(event.tokens.tokens)
        if event.WhichOneof("event") == "finished":
            return tokens, event.finished.reason


def test_one_token_more_than_the_pool_holds_runs_no_step(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups) as router:
            described = await router.decode_control.Describe(control_pb2.DescribeRequest())
            limit = min(described.max_request_tokens, described.max_model_len)
            steps = (await router.decode_control.GetState(control_pb2.StateRequest())).steps
            with pytest.raises(Exception, match=str(limit)):
                await router.generate("too long", _prompt(0, limit - 3), greedy(4))
            assert (await router.decode_control.GetState(control_pb2.StateRequest())).steps == steps
            assert (await router.audits())[1].leases == []

    asyncio.run(scenario())
