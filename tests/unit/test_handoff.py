"""One handoff against a scripted decode group: order, fences, and what is said when something goes wrong."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import grpc.aio
import pytest

from services.prefill.handoff import FirstToken, Handoff
from services.prefill.partners import Partner
from splash_core.errors import GroupFailed, Unavailable
from splash_core.ids import RankId, SlotId
from splash_core.layout.ownership import PageCopy
from splash_core.leader.ranks import RankPool
from splash_core.pb import common_pb2, decode_pb2, decode_pb2_grpc, rank_pb2

LEASE = common_pb2.Lease(
    lease="i/1",
    attempt=1,
    incarnation="i",
    group="decode-0",
    pages=[common_pb2.LandingPage(index=index, rank=index % 2, slot=10 + index) for index in range(4)],
)
SOURCE = tuple(
    tuple(PageCopy(rank=RankId(rank), slot=SlotId(20 + index), generation=0) for rank in range(2))
    for index in range(4)
)
FIRST = FirstToken(token=7, logprobs=None)


class Decode:
    """A decode group's handoff calls, scripted; keeps what was said in order."""

    def __init__(self, said: list[str]) -> None:
        self._said = said
        self.claim = decode_pb2.HandoffAck(accepted=True)
        self.completion = decode_pb2.HandoffAck(accepted=True)
        self.abandonment = decode_pb2.HandoffAck(accepted=True)
        self.abandon_failures = 0
        self.completed: decode_pb2.HandoffComplete | None = None

    async def ClaimLease(self, message: decode_pb2.LeaseClaim, timeout: float) -> decode_pb2.HandoffAck:
        self._said.append("claim")
        await asyncio.sleep(0)
        return self.claim

    async def CompleteHandoff(
        self, message: decode_pb2.HandoffComplete, timeout: float
    ) -> decode_pb2.HandoffAck:
        self._said.append("complete")
        self.completed = message
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
        return self.abandonment


class Ranks:
    """Source ranks whose writes end when the test says so."""

    def __init__(self, said: list[str]) -> None:
        self._said = said
        self.failure: GroupFailed | None = None
        self.quiet = asyncio.Event()
        self.error = ""
        self.orders: dict[RankId, rank_pb2.PushPages] = {}

    async def push(
        self, orders: dict[RankId, rank_pb2.PushPages], *, timeout_s: float
    ) -> list[rank_pb2.PushResult]:
        self._said.append("push")
        self.orders = orders
        await self.quiet.wait()
        self._said.append("quiet")
        if self.failure is not None:
            raise self.failure
        return [rank_pb2.PushResult(push=1, rank=rank, error=self.error) for rank in orders]


class Scene:
    """A handoff between the two."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.decode, self.ranks = Decode(self.said), Ranks(self.said)
        partner = Partner(
            group="decode-0",
            incarnation="i",
            ranks={
                RankId(rank): common_pb2.RankAddress(rank=rank, transport=f"shm:{rank}") for rank in (0, 1)
            },
            decode=cast("decode_pb2_grpc.DecodeStub", self.decode),
        )
        self.handoff = Handoff(
            LEASE,
            partner,
            decode_pb2.Writer(group="prefill-0", incarnation="w"),
            cast("RankPool", self.ranks),
            push=1,
            push_timeout_s=5.0,
        )

    async def run(self) -> None:
        self.handoff.start_claim()
        await self.handoff.push(SOURCE)
        await self.handoff.complete(FIRST, num_tokens=13)


def _run(scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Scene())

    asyncio.run(main())


async def _turns(count: int = 6) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_claim_push_complete_and_nothing_to_abandon() -> None:
    async def scenario(scene: Scene) -> None:
        scene.ranks.quiet.set()
        await scene.run()
        await scene.handoff.end()
        assert scene.said == ["claim", "push", "quiet", "complete"]
        message = scene.decode.completed
        assert message is not None
        assert (message.num_tokens, message.first_token, message.writer) == (13, 7, "w")
        written = [
            (target.peer.rank, src, dst)
            for order in scene.ranks.orders.values()
            for target in order.targets
            for src, dst in zip(target.src_slot, target.dst_slot, strict=True)
        ]
        assert sorted(written) == [(index % 2, 20 + index, 10 + index) for index in (0, 2, 1, 3)]
        # Both holders of every page share the work.
        assert [sum(len(t.src_slot) for t in order.targets) for order in scene.ranks.orders.values()] == [
            2,
            2,
        ]

    _run(scenario)


def test_a_request_that_leaves_while_pages_are_written_abandons_only_when_all_is_quiet() -> None:
    async def scenario(scene: Scene) -> None:
        running = asyncio.ensure_future(scene.run())
        await _turns()
        assert scene.handoff.pushing
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        ending = asyncio.ensure_future(scene.handoff.end())
        await _turns()
        assert scene.said == ["claim", "push"]
        assert scene.handoff.pushing
        scene.ranks.quiet.set()
        await ending
        assert scene.said == ["claim", "push", "quiet", "abandon"]

    _run(scenario)


def test_a_request_that_leaves_during_the_claim_abandons_after_the_claim_has_arrived() -> None:
    async def scenario(scene: Scene) -> None:
        scene.handoff.start_claim()
        await scene.handoff.end()
        assert scene.said == ["claim", "abandon"]

    _run(scenario)


def test_a_refused_claim_writes_nothing() -> None:
    async def scenario(scene: Scene) -> None:
        scene.decode.claim = decode_pb2.HandoffAck(accepted=False, reason="the lease has ended")
        with pytest.raises(Unavailable, match="the lease has ended"):
            await scene.run()
        await scene.handoff.end()
        assert "push" not in scene.said

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

    monkeypatch.setattr("services.prefill.handoff._FIRST_PAUSE_S", 0.0)
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

    monkeypatch.setattr("services.prefill.handoff.asyncio.sleep", sleep)
    _run(scenario)
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]


def test_another_incarnation_ends_the_abandoning() -> None:
    async def scenario(scene: Scene) -> None:
        scene.decode.abandonment = decode_pb2.HandoffAck(accepted=False, reason="incarnation i is not j")
        scene.handoff.start_claim()
        await scene.handoff.end()
        assert scene.said == ["claim", "abandon"]

    _run(scenario)
