"""One handoff against a scripted decode group: order, fences, and what is said when something goes wrong."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from services.prefill.handoff import FirstToken, Handoff, PushRules
from services.prefill.lease_talk import RPC_TIMEOUT_S
from services.prefill.partners import Partner
from splash_core.errors import GroupFailed, InvariantBroken, Unavailable
from splash_core.ids import RankId, SeqId, SlotId, StepId
from splash_core.layout.ownership import PageCopy
from splash_core.leader.leader import GroupLeader
from splash_core.pb import common_pb2, decode_pb2, decode_pb2_grpc, rank_pb2
from splash_core.scheduling.leases import handoff_checksum
from splash_core.scheduling.pushes import Outgoing, PushedPages
from splash_core.switch.handoff import LandingPage
from tests.support.contacts import ENDED, contact

PAGES = 4
SLOT_BYTES = 8
LEASE = common_pb2.Lease(
    lease="i/1",
    attempt=1,
    incarnation="i",
    group="decode-0",
    pages=[common_pb2.LandingPage(index=index, rank=index % 2, slot=10 + index) for index in range(PAGES)],
)
FIRST = FirstToken(token=7, logprobs=None)
SEQ = SeqId(1)


class Decode:
    """A decode group's handoff calls, scripted; keeps what was said in order."""

    def __init__(self, said: list[str]) -> None:
        self._said = said
        self.claim = decode_pb2.HandoffAck(accepted=True)
        self.may_claim = asyncio.Event()
        self.may_claim.set()
        self.may_complete = asyncio.Event()
        self.may_complete.set()
        self.completion = decode_pb2.HandoffAck(accepted=True)
        self.abandonment = decode_pb2.HandoffAck(accepted=True)
        self.abandon_failures = 0
        self.claim_breaks = False
        self.attempts: list[int] = []
        self.handoffs: list[int] = []
        """As each message names it."""
        self.completed: decode_pb2.HandoffComplete | None = None

    async def ClaimLease(self, message: decode_pb2.LeaseClaim, timeout: float) -> decode_pb2.HandoffAck:
        self._said.append("claim")
        self.attempts.append(message.attempt)
        self.handoffs.append(message.writer.handoff)
        await self.may_claim.wait()
        if self.claim_breaks:
            raise RuntimeError("a bug")
        return self.claim

    async def CompleteHandoff(
        self, message: decode_pb2.HandoffComplete, timeout: float
    ) -> decode_pb2.HandoffAck:
        self._said.append("complete")
        self.completed = message
        self.handoffs.append(message.handoff)
        await self.may_complete.wait()
        return self.completion

    async def AbandonHandoff(
        self, message: decode_pb2.HandoffAbandon, timeout: float
    ) -> decode_pb2.HandoffAck:
        if self.abandon_failures:
            self.abandon_failures -= 1
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "away", ""
            )
        self._said.append("abandon")
        self.handoffs.append(message.handoff)
        return self.abandonment


class Ranks:
    """Source ranks whose writes end when the test says so."""

    def __init__(self, said: list[str]) -> None:
        self._said = said
        self.failure: GroupFailed | None = None
        self.quiet = asyncio.Event()
        self.error = ""
        self.orders: list[rank_pb2.PushPages] = []
        self.cancelled: list[int] = []

    async def push(self, orders: dict[RankId, rank_pb2.PushPages]) -> list[rank_pb2.PushResult]:
        self._said.append("push")
        self.orders += orders.values()
        await self.quiet.wait()
        self._said.append("quiet")
        if self.failure is not None:
            raise self.failure
        return [
            rank_pb2.PushResult(push=order.push, rank=rank, error=self.error, bytes=_bytes(order))
            for rank, order in orders.items()
        ]

    async def cancel_push(self, push: int) -> None:
        self.cancelled.append(push)


class Book:
    """What a group's scheduler says of one sequence; both ranks hold all pages."""

    def __init__(self) -> None:
        self.run, self.pages, self.step = 1, 0, 0
        self.open: set[int] = set()
        self._count = 0

    def outgoing(self, seq: SeqId, *, first: int) -> Outgoing | None:
        assert seq == SEQ
        assert first <= PAGES
        return Outgoing(run=self.run, pages=self.pages) if self.pages else None

    def begin(self, seq: SeqId, *, first: int, end: int, lease: str) -> tuple[int, PushedPages]:
        assert lease == LEASE.lease
        self._count += 1
        self.open.add(self._count)
        copies = tuple(
            tuple(PageCopy(rank=RankId(rank), slot=SlotId(20 + index), generation=0) for rank in range(2))
            for index in range(first, end)
        )
        return self._count, PushedPages(first_index=first, copies=copies, step=StepId(self.step))

    def end(self, push: int) -> None:
        self.open.remove(push)


def _bytes(order: rank_pb2.PushPages) -> int:
    return sum(len(target.src_slot) for target in order.targets) * SLOT_BYTES


class Scene:
    """A handoff between the two."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.decode, self.ranks, self.book = Decode(self.said), Ranks(self.said), Book()
        self.partner = partner = Partner(
            group="decode-0",
            incarnation="i",
            ranks={
                RankId(rank): common_pb2.RankAddress(rank=rank, transport=f"shm:{rank}") for rank in (0, 1)
            },
            decode=cast("decode_pb2_grpc.DecodeStub", self.decode),
            contact=contact(self.decode),
        )
        self.leader = SimpleNamespace(
            ranks=self.ranks,
            scheduler=SimpleNamespace(pushes=self.book),
            pending_push_bytes=0,
            wake=lambda: None,
        )
        self.handoff = Handoff(
            LEASE,
            partner,
            decode_pb2.Writer(group="prefill-0", incarnation="w", handoff=3),
            cast("GroupLeader", self.leader),
            PushRules(timeout_s=5.0, step_timeout_s=5.0, layer_ends=(1, 3), slot_bytes=SLOT_BYTES),
        )

    def lose_decode(self) -> None:
        """It is proven that the decode group has ended."""
        ended = replace(self.partner.contact._other, leader=ENDED)
        self.partner.contact._other = ended

    def start(self) -> None:
        self.handoff.start_claim()
        self.handoff.bind(SEQ)

    async def chunk(self, pages: int, *, step: int = 0) -> None:
        """The next chunk is planned: so many pages will be whole."""
        self.book.pages, self.book.step = pages, step
        self.handoff.pump()
        await _turns()

    async def finish(self) -> None:
        await self.handoff.finish(FIRST, num_tokens=13)

    async def run(self) -> None:
        self.start()
        self.book.pages = PAGES
        await self.finish()

    def written(self) -> list[tuple[int, int, int]]:
        """(rank, source slot, landing slot) of every write that was ordered."""
        return sorted(
            (target.peer.rank, src, dst)
            for order in self.ranks.orders
            for target in order.targets
            for src, dst in zip(target.src_slot, target.dst_slot, strict=True)
        )


def _run(scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        scene = Scene()
        await scenario(scene)
        assert not scene.book.open
        assert scene.leader.pending_push_bytes == 0

    asyncio.run(main())


async def _turns(count: int = 6) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


ALL_WRITES = sorted((index % 2, 20 + index, 10 + index) for index in range(PAGES))


def test_claim_push_complete_and_nothing_to_abandon() -> None:
    async def scenario(scene: Scene) -> None:
        scene.ranks.quiet.set()
        await scene.run()
        await scene.handoff.end()
        assert scene.said == ["claim", "push", "quiet", "complete"]
        message = scene.decode.completed
        assert message is not None
        assert (message.num_tokens, message.first_token, message.writer) == (13, 7, "w")
        assert (message.num_pages, message.num_layers, message.bytes) == (PAGES, 3, PAGES * SLOT_BYTES)
        assert (message.lease, message.attempt, message.incarnation) == ("i/1", 1, "i")
        assert message.first_position == 13
        assert scene.written() == ALL_WRITES
        # Both holders of every page share the work.
        assert [_bytes(order) for order in scene.ranks.orders] == [2 * SLOT_BYTES] * 2

    _run(scenario)


def test_pages_leave_with_the_step_that_fills_them() -> None:
    async def scenario(scene: Scene) -> None:
        scene.start()
        await _turns()
        await scene.chunk(1, step=5)
        await scene.chunk(1, step=6)  # fills no further page
        await scene.chunk(3, step=7)
        assert scene.said == ["claim", "push", "push"]
        assert scene.leader.pending_push_bytes == 3 * SLOT_BYTES
        finishing = asyncio.ensure_future(scene.finish())
        await scene.chunk(4, step=8)
        scene.ranks.quiet.set()
        await finishing
        assert [order.step for order in scene.ranks.orders] == [5, 7, 7, 8]
        keys = {(o.lease, o.attempt, o.incarnation, tuple(o.layer_ends)) for o in scene.ranks.orders}
        assert keys == {("i/1", 1, "i", (1, 3))}
        assert scene.written() == ALL_WRITES

    _run(scenario)


def test_nothing_leaves_before_the_claim_is_accepted_and_then_all_that_is_whole() -> None:
    async def scenario(scene: Scene) -> None:
        scene.decode.may_claim.clear()
        scene.start()
        await scene.chunk(2, step=3)
        assert scene.said == ["claim"]
        scene.decode.may_claim.set()
        await _turns()
        assert scene.said == ["claim", "push"]
        scene.ranks.quiet.set()
        await scene.chunk(4, step=4)
        await scene.finish()
        assert scene.written() == ALL_WRITES

    _run(scenario)


def test_a_prompt_that_is_computed_again_is_pushed_anew_as_the_next_attempt() -> None:
    """Of the computation that was given up nothing counts, and nothing of it can land over the new pages."""

    async def scenario(scene: Scene) -> None:
        scene.start()
        await _turns()
        await scene.chunk(3, step=5)
        scene.book.run = 2
        await scene.chunk(2, step=9)
        assert scene.said == ["claim", "push"]  # the old writes are not quiet yet
        scene.ranks.quiet.set()
        await _turns()
        assert scene.said == ["claim", "push", "quiet", "claim", "push", "quiet"]
        await scene.chunk(4, step=10)
        await scene.finish()
        assert scene.decode.attempts == [1, 2]
        attempts = [order.attempt for order in scene.ranks.orders]
        assert attempts == sorted(attempts)
        assert set(attempts) == {1, 2}
        message = scene.decode.completed
        assert message is not None
        assert (message.attempt, message.num_pages, message.bytes) == (2, PAGES, PAGES * SLOT_BYTES)

    _run(scenario)


def test_a_preemption_before_anything_was_pushed_needs_no_new_attempt() -> None:
    async def scenario(scene: Scene) -> None:
        scene.ranks.quiet.set()
        scene.start()
        await _turns()
        scene.book.run = 2
        await scene.chunk(PAGES)
        await scene.finish()
        assert scene.decode.attempts == [1]

    _run(scenario)


def test_a_completion_names_what_was_reported_as_written() -> None:
    async def scenario(scene: Scene) -> None:
        scene.ranks.quiet.set()
        await scene.run()
        landing = [LandingPage(index, RankId(index % 2), SlotId(10 + index)) for index in range(PAGES)]
        assert scene.decode.completed is not None
        assert scene.decode.completed.checksum == handoff_checksum(landing)

    _run(scenario)


def test_a_request_that_leaves_while_pages_are_written_abandons_only_when_all_is_quiet() -> None:
    async def scenario(scene: Scene) -> None:
        running = asyncio.ensure_future(scene.run())
        await _turns()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        ending = asyncio.ensure_future(scene.handoff.end())
        await _turns()
        assert scene.said == ["claim", "push"]
        assert scene.ranks.cancelled == [1]
        assert scene.book.open == {1}
        scene.ranks.quiet.set()
        await ending
        assert scene.said == ["claim", "push", "quiet", "abandon"]

    _run(scenario)


def test_a_request_that_leaves_between_chunks_pushes_nothing_more() -> None:
    async def scenario(scene: Scene) -> None:
        scene.ranks.quiet.set()
        scene.start()
        await _turns()
        await scene.chunk(2, step=1)
        await scene.handoff.end()
        await scene.chunk(4, step=2)
        assert scene.said == ["claim", "push", "quiet", "abandon"]

    _run(scenario)


def test_a_request_that_leaves_during_the_completion_abandons_whatever_became_of_it() -> None:
    """Decode may have taken over or may not have heard: what it then hears ends the lease either way."""

    async def scenario(scene: Scene) -> None:
        scene.ranks.quiet.set()
        scene.decode.may_complete.clear()
        running = asyncio.ensure_future(scene.run())
        while "complete" not in scene.said:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await scene.handoff.end()
        assert scene.said == ["claim", "push", "quiet", "complete", "abandon"]

    _run(scenario)


def test_a_request_that_leaves_during_the_claim_abandons_after_the_claim_has_arrived() -> None:
    async def scenario(scene: Scene) -> None:
        scene.handoff.start_claim()
        await scene.handoff.end()
        assert scene.said == ["claim", "abandon"]

    _run(scenario)


def test_a_request_that_leaves_while_an_attempt_is_renewed_abandons_the_attempt_that_was_claimed() -> None:
    async def scenario(scene: Scene) -> None:
        scene.start()
        await _turns()
        await scene.chunk(3, step=5)
        scene.book.run = 2
        await scene.chunk(1, step=9)
        ending = asyncio.ensure_future(scene.handoff.end())
        await _turns()
        scene.ranks.quiet.set()
        await ending
        assert scene.said == ["claim", "push", "quiet", "abandon"]
        assert scene.decode.attempts == [1]

    _run(scenario)


def test_a_refused_claim_writes_nothing_and_ends_the_computation() -> None:
    async def scenario(scene: Scene) -> None:
        scene.decode.claim = decode_pb2.HandoffAck(accepted=False, reason="the lease has ended")
        scene.start()
        failure = await scene.handoff.failed()
        assert "the lease has ended" in str(failure)
        with pytest.raises(Unavailable, match="the lease has ended"):
            await scene.finish()
        await scene.handoff.end()
        assert "push" not in scene.said

    _run(scenario)


def test_a_push_that_fails_between_chunks_ends_the_computation() -> None:
    async def scenario(scene: Scene) -> None:
        scene.ranks.quiet.set()
        scene.ranks.error = "the deadline passed after 0 bytes"
        scene.start()
        await _turns()
        await scene.chunk(1, step=1)
        assert "deadline passed" in str(await scene.handoff.failed())
        await scene.chunk(2, step=2)
        assert scene.said == ["claim", "push", "quiet"]
        await scene.handoff.end()

    _run(scenario)


@pytest.mark.parametrize("what", ["push", "complete"])
def test_a_failed_push_or_a_refused_completion_is_abandoned_and_named(what: str) -> None:
    async def scenario(scene: Scene) -> None:
        scene.ranks.quiet.set()
        if what == "push":
            scene.ranks.error = "the deadline passed after 0 bytes"
        else:
            scene.decode.completion = decode_pb2.HandoffAck(accepted=False, reason="checksum differs")
        with pytest.raises(Unavailable, match="deadline passed" if what == "push" else "checksum differs"):
            await scene.run()
        await scene.handoff.end()
        assert scene.said[-1] == "abandon"
        assert set(scene.decode.handoffs) == {3}

    _run(scenario)


def test_a_lease_on_ranks_that_the_group_does_not_have_fails_by_name() -> None:
    async def scenario(scene: Scene) -> None:
        del scene.handoff._partner.ranks[RankId(1)]
        with pytest.raises(Unavailable, match=r"has no ranks \[1\]"):
            await scene.run()
        await scene.handoff.end()
        assert scene.said == ["claim", "abandon"]

    _run(scenario)


def test_a_failed_group_says_nothing_because_its_ranks_may_still_be_dying() -> None:
    async def scenario(scene: Scene) -> None:
        running = asyncio.ensure_future(scene.run())
        await _turns()
        scene.ranks.failure = GroupFailed("rank 1 died")
        scene.ranks.quiet.set()
        with pytest.raises(GroupFailed):
            await running
        await scene.handoff.end()
        assert "abandon" not in scene.said

    _run(scenario)


def test_an_abandon_is_said_again_until_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        scene.decode.abandon_failures = 200
        scene.handoff.start_claim()
        await scene.handoff.end()
        assert scene.said == ["claim", "abandon"]

    monkeypatch.setattr("services.prefill.lease_talk._FIRST_PAUSE_S", 0.0)
    _run(scenario)


def test_pauses_between_abandons_grow_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)

    async def scenario(scene: Scene) -> None:
        scene.decode.abandon_failures = 9
        scene.handoff.start_claim()
        await scene.handoff.end()

    monkeypatch.setattr("services.prefill.lease_talk.asyncio.sleep", sleep)
    _run(scenario)
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]


def test_an_abandon_is_not_said_for_ever_to_a_group_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        scene.decode.abandon_failures = 200
        scene.handoff.start_claim()
        while "claim" not in scene.said:
            await asyncio.sleep(0)
        ending = asyncio.create_task(scene.handoff.end())
        while "to hear that the lease is abandoned (now: away)" not in scene.handoff.waits.waits_for:
            await asyncio.sleep(0)
        assert scene.handoff.waits.subject == "lease i/1"
        assert "or the end of its leader (pid 1)" in scene.handoff.waits.waits_for
        before = scene.decode.abandon_failures
        for _ in range(20):
            await asyncio.sleep(0)
        assert scene.decode.abandon_failures < before
        scene.lose_decode()
        await ending
        assert scene.said == ["claim"]
        assert scene.partner.contact.idle

    monkeypatch.setattr("services.prefill.lease_talk._FIRST_PAUSE_S", 0.0)
    _run(scenario)


def test_pages_are_written_in_the_term_of_the_claim() -> None:
    async def scenario(scene: Scene) -> None:
        scene.decode.claim = decode_pb2.HandoffAck(accepted=True, term=4)
        scene.partner.ranks[RankId(1)].transport = "mooncake://h:1/i"
        scene.ranks.quiet.set()
        await scene.run()
        addresses = {target.peer.transport for order in scene.ranks.orders for target in order.targets}
        # Shared memory knows no terms.
        assert addresses == {"shm:0", "mooncake://h:1/i?term=4"}

    _run(scenario)


def test_another_incarnation_ends_the_abandoning() -> None:
    async def scenario(scene: Scene) -> None:
        scene.decode.abandonment = decode_pb2.HandoffAck(accepted=False, reason="incarnation i is not j")
        scene.handoff.start_claim()
        await scene.handoff.end()
        assert scene.said == ["claim", "abandon"]

    _run(scenario)


def test_a_push_that_is_late_fails_its_request_at_once_and_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its peer stands still: the group lives on, and nobody gets the pages before its ranks have reported."""

    async def scenario(scene: Scene) -> None:
        scene.handoff._rules = PushRules(
            timeout_s=0.0, step_timeout_s=0.0, layer_ends=(1, 3), slot_bytes=SLOT_BYTES
        )
        with pytest.raises(Unavailable, match="handoff to decode-0 failed: push 1 to its ranks 0, 1") as told:
            await scene.run()
        assert "restart it" in str(told.value)
        assert await scene.handoff.failed() is told.value
        ending = asyncio.ensure_future(scene.handoff.end())
        await _turns()
        assert not ending.done()
        assert scene.ranks.failure is None
        assert scene.ranks.cancelled == [1]
        assert scene.book.open == {1}
        assert scene.said == ["claim", "push"]
        scene.ranks.quiet.set()
        await ending
        assert scene.said == ["claim", "push", "quiet", "abandon"]

    monkeypatch.setattr("services.prefill.handoff.RPC_TIMEOUT_S", 0.0)
    _run(scenario)
    assert "its pages stay pinned, and lease i/1 is not abandoned" in caplog.text
    assert "push 1 of lease i/1 is quiet at last" in caplog.text


def test_a_push_may_be_held_by_the_rest_of_one_step_and_all_of_the_next() -> None:
    rules = PushRules(timeout_s=30.0, step_timeout_s=60.0, layer_ends=(1,), slot_bytes=SLOT_BYTES)
    assert rules.report_s == 60.0 + 60.0 + 30.0 + RPC_TIMEOUT_S


@pytest.mark.parametrize("places", [[0, 1, 2], [0, 1, 2, 3, 3]])
@pytest.mark.parametrize("late_claim", [False, True])
def test_a_push_that_cannot_be_planned_fails_its_request_and_pins_nothing(
    places: list[int], late_claim: bool
) -> None:
    """Whether the loop orders it, or the claim's answer does."""

    async def scenario(scene: Scene) -> None:
        scene.handoff._landing = [LandingPage(index, RankId(0), SlotId(index)) for index in places]
        if late_claim:
            scene.decode.may_claim.clear()
        scene.start()
        await _turns()
        await scene.chunk(PAGES)
        scene.decode.may_claim.set()
        assert isinstance(await scene.handoff.failed(), InvariantBroken)
        assert not scene.book.open
        with pytest.raises(InvariantBroken):
            await scene.finish()
        await scene.handoff.end()
        assert scene.said == ["claim", "abandon"]

    _run(scenario)


def test_a_claim_that_breaks_is_told_and_not_waited_for() -> None:
    async def scenario(scene: Scene) -> None:
        scene.decode.claim_breaks = True
        with pytest.raises(InvariantBroken, match="RuntimeError: a bug"):
            await scene.run()
        await scene.handoff.end()
        assert scene.said == ["claim", "abandon"]

    _run(scenario)
