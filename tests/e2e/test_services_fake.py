"""Prefill and decode groups as real processes over real gRPC, without weights and without the gateway."""

import asyncio
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from splash_core import errors
from splash_core.obs.lifeline import ProcessRef
from splash_core.pb import common_pb2, control_pb2, decode_pb2, prefill_pb2
from splash_core.rpc.codec import process_to_pb
from splash_core.rpc.errors import from_rpc_error
from splash_core.scheduling.leases import handoff_checksum
from splash_core.switch.handoff import LandingPage
from splash_core.transport.counters import TrafficCount
from tests.support.fake_groups import (
    FakeRouter,
    await_ready,
    expected_tokens,
    fake_router,
    greedy,
    running,
    start_group,
)

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def groups(transport: str, tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One prefill and one decode group, and a decode group with another page size; two ranks each."""
    run_dir = tmp_path_factory.mktemp("g")
    quick: dict[str, object] = {"queue-requests": 40, "max-running": 8, "chunk-tokens": 16}
    quick |= {"drain-timeout-s": 1, "transport": transport}
    children = [
        start_group("prefill", tiny_v3, run_dir, name="prefill-0", flags={**quick, "fake-step-s": 0.002}),
        start_group("decode", tiny_v3, run_dir, name="decode-0", flags={**quick, "fake-step-s": 0.002}),
        start_group("decode", tiny_v3, run_dir, name="decode-16", flags={**quick, "page-size": 16}),
    ]
    with running(*children):
        await_ready(run_dir, *children)
        yield run_dir


def _prompt(index: int, length: int = 21) -> list[int]:
    return [(7 * index + position) % 300 for position in range(length)]


def test_many_requests_get_exactly_their_tokens(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups) as router:
            jobs = [router.generate(f"r{i}", _prompt(i, 5 + 3 * i), greedy(9)) for i in range(20)]
            outcomes = await asyncio.gather(*jobs)
            for index, outcome in enumerate(outcomes):
                assert outcome.tokens == expected_tokens(_prompt(index, 5 + 3 * index), 9)
                assert outcome.finish == "length"
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


def test_a_group_tells_what_its_links_have_carried(groups: Path) -> None:
    async def handed_over(router: FakeRouter) -> float:
        state = await router.prefill_control.GetState(control_pb2.StateRequest())
        moved = [sample for sample in state.traffic if sample.name == TrafficCount.BYTES]
        return sum(sample.value for sample in moved if sample.traffic == "handoff")

    async def scenario() -> None:
        async with fake_router(groups) as router:
            before = await handed_over(router)
            await router.generate("links", _prompt(3), greedy(2))
            description = await router.decode_control.Describe(control_pb2.DescribeRequest())
            abi = description.abi
            page = abi.page_size * abi.layers * (abi.latent_dim + abi.rope_dim) * 4
            # A prompt of 21 tokens is three pages of eight; ranks report now and then, each for itself.
            for _ in range(200):
                told = await handed_over(router)
                if told >= before + 3 * page:
                    break
                await asyncio.sleep(0.05)
            assert told >= before + 3 * page
            assert told % page == 0

    asyncio.run(scenario())


def test_prefill_counts_first_tokens_and_decode_has_none(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups) as router:
            before = (await router.prefill_control.GetState(control_pb2.StateRequest())).totals
            began = time.monotonic()
            for index in range(5):
                await router.generate(f"first{index}", _prompt(index), greedy(3))
            took_s = time.monotonic() - began
            # One that only scores its prompt has no first token.
            scored = prefill_pb2.PrefillRequest(
                request_id="scored", prompt=_prompt(9), sampling=greedy(0, prompt_logprobs=1)
            )
            await router.prefill.Run(scored)
            after = (await router.prefill_control.GetState(control_pb2.StateRequest())).totals
            assert after.prompts - before.prompts == 5
            assert 0 < after.ttft_s - before.ttft_s < took_s
            decode = (await router.decode_control.GetState(control_pb2.StateRequest())).totals
            assert (decode.prompts, decode.ttft_s) == (0, 0.0)

    asyncio.run(scenario())


def test_one_token_and_a_stop_token_end_a_request_rightly(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups) as router:
            one = await router.generate("one", _prompt(2), greedy(1))
            assert (one.tokens, one.finish) == (expected_tokens(_prompt(2), 1), "length")
            usual = expected_tokens(_prompt(2), 6)
            for position in (0, 3):
                stopped = await router.generate(
                    f"stop{position}", _prompt(2), greedy(6, stop_token_ids=[usual[position]])
                )
                assert (stopped.tokens, stopped.finish) == (usual[:position], "stop")
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


def test_tokens_do_not_change_while_both_groups_switch(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups) as router:
            jobs = [
                asyncio.ensure_future(router.generate(f"s{i}", _prompt(i, 40), greedy(60))) for i in range(6)
            ]
            for layout in ("TP", "CP", "DOP", "DP", "CP", "TP", "DP"):
                for control in (router.decode_control, router.prefill_control):
                    result = await control.SetLayout(control_pb2.SetLayoutRequest(layout=layout))
                    assert result.to_layout == layout
            for index, outcome in enumerate(await asyncio.gather(*jobs)):
                assert outcome.tokens == expected_tokens(_prompt(index, 40), 60)
            again = await router.decode_control.SetLayout(control_pb2.SetLayoutRequest(layout="DP"))
            assert (again.from_layout, again.to_layout, again.bytes) == ("DP", "DP", 0)
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


def test_cancel_at_any_point_frees_both_groups(groups: Path) -> None:
    async def cancelled(router: FakeRouter, index: int, delay_s: float) -> None:
        job = asyncio.ensure_future(router.generate(f"c{index}", _prompt(index, 60), greedy(200)))
        await asyncio.sleep(delay_s)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    async def scenario() -> None:
        draw = random.Random(5)
        async with fake_router(groups) as router:
            await asyncio.gather(*(cancelled(router, i, draw.uniform(0.0, 0.4)) for i in range(40)))
            await router.until_empty(within_s=2)
            # The pages really are usable: new traffic flows.
            outcome = await router.generate("after", _prompt(1), greedy(5))
            assert outcome.tokens == expected_tokens(_prompt(1), 5)

    asyncio.run(scenario())


async def _claimed_lease(router: FakeRouter, writer: decode_pb2.Writer) -> common_pb2.Lease:
    """A lease that `writer` has claimed and whose request has then gone."""
    call = router.decode.Generate(
        decode_pb2.DecodeRequest(request_id="q", prompt=_prompt(3), sampling=greedy(5))
    )
    event = await call.read()
    lease = event.lease
    claim = decode_pb2.LeaseClaim(
        lease=lease.lease, attempt=lease.attempt, incarnation=lease.incarnation, writer=writer
    )
    ack = await router.decode.ClaimLease(claim)
    assert ack.accepted, ack.reason
    call.cancel()
    return lease


async def _held_leases(router: FakeRouter) -> list[control_pb2.LeaseAudit]:
    return list((await router.audits())[1].leases)


async def _until_quarantined(router: FakeRouter) -> None:
    for _ in range(100):
        leases = await _held_leases(router)
        if [lease.state for lease in leases] == ["quarantined"]:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not quarantined: {leases}")


def test_pages_of_a_writer_that_may_still_write_stay_quarantined_until_it_abandons(groups: Path) -> None:
    async def scenario() -> None:
        myself = decode_pb2.Writer(
            group="p", incarnation="w1", ranks=[process_to_pb(ProcessRef.of(os.getpid()))]
        )
        async with fake_router(groups) as router:
            lease = await _claimed_lease(router, myself)
            await _until_quarantined(router)
            await asyncio.sleep(1.2)  # several sweeps: time alone frees nothing
            assert [entry.writer for entry in await _held_leases(router)] == ["w1/0"]
            abandon = decode_pb2.HandoffAbandon(
                lease=lease.lease, attempt=lease.attempt, incarnation=lease.incarnation, writer="w1"
            )
            assert (await router.decode.AbandonHandoff(abandon)).accepted
            await router.until_empty(within_s=1)
            assert (await router.decode.AbandonHandoff(abandon)).accepted  # a repeat changes nothing

    asyncio.run(scenario())


def test_pages_of_a_writer_come_back_when_it_is_proven_dead(groups: Path) -> None:
    async def scenario() -> None:
        with subprocess.Popen(["sleep", "60"]) as process:
            writer = decode_pb2.Writer(
                group="p", incarnation="w2", ranks=[process_to_pb(ProcessRef.of(process.pid))]
            )
            async with fake_router(groups) as router:
                await _claimed_lease(router, writer)
                await _until_quarantined(router)
                process.kill()
                process.wait()
                await router.until_empty(within_s=3)

    asyncio.run(scenario())


def test_a_completion_must_match_its_lease_and_may_be_repeated(groups: Path) -> None:
    async def scenario() -> None:
        prompt = _prompt(9)
        writer = decode_pb2.Writer(
            group="p", incarnation="w3", ranks=[process_to_pb(ProcessRef.of(os.getpid()))]
        )
        async with fake_router(groups) as router:
            call = router.decode.Generate(
                decode_pb2.DecodeRequest(request_id="m", prompt=prompt, sampling=greedy(2))
            )
            lease = (await call.read()).lease
            base = {"lease": lease.lease, "attempt": lease.attempt, "incarnation": lease.incarnation}
            pages = [LandingPage(page.index, page.rank, page.slot) for page in lease.pages]  # type: ignore[arg-type]
            first = expected_tokens(prompt, 1)[0]
            described = await router.decode_control.Describe(control_pb2.DescribeRequest())
            slots = sum(rank.slots for rank in (await router.audits())[1].ranks)
            layers = described.abi.layers
            good = decode_pb2.HandoffComplete(
                **base,
                num_tokens=len(prompt),
                checksum=handoff_checksum(pages),
                first_token=first,
                first_position=len(prompt),
                num_pages=len(pages),
                num_layers=layers,
                bytes=sum(rank.arena_bytes for rank in described.ranks) // slots * len(pages),
                writer="w3",
            )
            unclaimed = await router.decode.CompleteHandoff(good)
            assert not unclaimed.accepted
            assert "claimed" in unclaimed.reason
            assert (await router.decode.ClaimLease(decode_pb2.LeaseClaim(**base, writer=writer))).accepted
            wrong = decode_pb2.HandoffComplete()
            wrong.CopyFrom(good)
            wrong.checksum = "0" * 16
            refused = await router.decode.CompleteHandoff(wrong)
            assert not refused.accepted
            assert "checksum" in refused.reason
            assert (await router.decode.CompleteHandoff(good)).accepted
            tokens: list[int] = []
            while len(tokens) < 2:
                tokens.extend((await call.read()).tokens.tokens)
            assert (await call.read()).finished.reason == "length"
            assert tokens == expected_tokens(prompt, 2)
            assert (await router.decode.CompleteHandoff(good)).accepted
            late = await router.decode.ClaimLease(decode_pb2.LeaseClaim(**base, writer=writer))
            assert not late.accepted
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


def test_a_full_queue_answers_overloaded_with_a_time_to_come_back(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups) as router:
            calls = [
                router.decode.Generate(
                    decode_pb2.DecodeRequest(request_id=f"o{i}", prompt=_prompt(i), sampling=greedy(5))
                )
                for i in range(8 + 40)
            ]
            # Calls may arrive in any order: eight of them hold a lease, the others wait.
            first = [asyncio.ensure_future(call.read()) for call in calls]
            for _ in range(200):
                state = await router.decode_control.GetState(control_pb2.StateRequest())
                if (state.running, state.waiting) == (8, 40):
                    break
                await asyncio.sleep(0.02)
            assert (state.running, state.waiting) == (8, 40)
            leases = [task.result() for task in first if task.done()]
            assert all(event.WhichOneof("event") == "lease" for event in leases)
            one_more = router.decode.Generate(
                decode_pb2.DecodeRequest(request_id="last", prompt=_prompt(0), sampling=greedy(5))
            )
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await one_more.read()
            error = from_rpc_error(raised.value, peer="decode")
            assert isinstance(error, errors.Overloaded)
            assert error.retry_after_s > 0
            assert "40" in str(error)
            for call in calls:
                call.cancel()
            await asyncio.gather(*first, return_exceptions=True)
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


def test_a_request_that_can_never_fit_is_refused_at_once(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups) as router:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await router.generate("long", _prompt(0, 3000), greedy(5))
            error = from_rpc_error(raised.value, peer="decode")
            assert isinstance(error, errors.ContextTooLong)
            assert error.code == "context_length_exceeded"
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await router.generate("bad", _prompt(0), greedy(5, min_p=3.0))
            refused = from_rpc_error(raised.value, peer="decode")
            assert isinstance(refused, errors.InvalidRequest)
            assert refused.param == "min_p"

    asyncio.run(scenario())


def test_groups_whose_kv_differs_refuse_to_pair_and_name_the_field(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups, decode="decode-16") as router:
            began = time.monotonic()
            call = router.decode.Generate(
                decode_pb2.DecodeRequest(request_id="x", prompt=_prompt(0), sampling=greedy(5))
            )
            lease = (await call.read()).lease
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await router.prefill.Run(
                    prefill_pb2.PrefillRequest(
                        request_id="x", prompt=_prompt(0), sampling=greedy(5), lease=lease
                    )
                )
            error = from_rpc_error(raised.value, peer="prefill")
            assert isinstance(error, errors.Unavailable)
            assert "page_size" in str(error)
            assert "16" in str(error)
            assert time.monotonic() - began < 10
            call.cancel()
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


def test_a_prompt_can_be_scored_without_decode(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups) as router:
            prompt = _prompt(4, 40)
            result = await router.prefill.Run(
                prefill_pb2.PrefillRequest(
                    request_id="score", prompt=prompt, sampling=greedy(0, prompt_logprobs=2)
                )
            )
            assert [entry.token for entry in result.prompt_logprobs] == prompt[1:]
            assert all(len(entry.top) == 2 for entry in result.prompt_logprobs)
            await router.until_empty(within_s=2)

    asyncio.run(scenario())


def test_drain_refuses_new_requests_and_waits_for_old_ones(groups: Path) -> None:
    async def scenario() -> None:
        async with fake_router(groups, decode="decode-16") as router:
            call = router.decode.Generate(
                decode_pb2.DecodeRequest(request_id="d", prompt=_prompt(0), sampling=greedy(5))
            )
            await call.read()
            result = await router.decode_control.Drain(control_pb2.DrainRequest(deadline_s=0.3))
            assert (result.drained, result.left) == (False, 1)
            late = router.decode.Generate(
                decode_pb2.DecodeRequest(request_id="e", prompt=_prompt(0), sampling=greedy(5))
            )
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await late.read()
            assert isinstance(from_rpc_error(raised.value, peer="decode"), errors.Unavailable)
            call.cancel()
            result = await router.decode_control.Drain(control_pb2.DrainRequest(deadline_s=5))
            assert result.drained

    asyncio.run(scenario())
