"""What a prefill request may hold when its group ends, or its decode group cannot be reached."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from services.prefill.partners import Partner, Partners
from services.prefill.servicer import PrefillService
from splash_core.errors import GroupFailed, InvalidRequest, Overloaded, SplashError, Unavailable
from splash_core.ids import RankId, RequestId, SeqId, SlotId, StepId
from splash_core.layout.ownership import PageCopy
from splash_core.leader.build import GroupBlueprint
from splash_core.leader.leader import GroupLeader
from splash_core.leader.streams import SequenceStream
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import common_pb2, decode_pb2, decode_pb2_grpc, prefill_pb2
from splash_core.rpc.codec import sampling_to_pb
from splash_core.scheduling.events import PrefilledEvent
from splash_core.scheduling.pushes import Outgoing, PushedPages
from splash_core.spec.request import MOST_PRIORITY, Purpose, SamplingParams
from tests.support.contacts import contact

LEASE = common_pb2.Lease(
    lease="i/1", attempt=1, incarnation="i", pages=[common_pb2.LandingPage(index=0, rank=0, slot=9)]
)
REQUEST = prefill_pb2.PrefillRequest(
    request_id="r", prompt=[1, 2, 3], sampling=sampling_to_pb(SamplingParams(max_tokens=4)), lease=LEASE
)


class Leader:
    """A group whose one sequence is prefilled at once; counts what is added and dropped."""

    def __init__(self) -> None:
        self.failure: SplashError | None = None
        self.added = 0
        self.waiting = 0
        """Prompt tokens that wait for room."""
        self.dropped: list[SeqId] = []
        self.pending_push_bytes = 0
        self.ended: list[int] = []
        self.first_tokens: list[float] = []
        self.note_first_token = self.first_tokens.append
        self.scheduler = SimpleNamespace(
            kv_tokens=lambda: SimpleNamespace(waiting=self.waiting, waiting_sequences=int(self.waiting > 0)),
            add=self._add,
            pushes=SimpleNamespace(
                outgoing=lambda seq, first: Outgoing(run=1, pages=1),
                begin=self._begin,
                end=self.ended.append,
            ),
        )
        self.pushed = asyncio.Event()
        self.quiet = asyncio.Event()
        self.ranks = SimpleNamespace(
            failure=None,
            push=self._push,
            cancel_push=self._cancel_push,
            tell_links=self._tell_links,
            vitals=VitalTasks(),
        )

    def check_open(self) -> None:
        if self.failure is not None:
            raise self.failure

    def open_stream(self, seq: SeqId) -> SequenceStream:
        stream = SequenceStream()
        stream.put(
            PrefilledEvent(
                seq=seq, request_id=RequestId("r"), first_token=7, first_logprobs=None, prompt_logprobs=()
            )
        )
        return stream

    def cancel(self, seq: SeqId) -> None:
        self.dropped.append(seq)

    def _add(self, request_id: str, prompt: tuple[int, ...], sampling: object) -> SeqId:
        del request_id, prompt, sampling
        self.added += 1
        return SeqId(self.added)

    def join(self, part: object) -> None:
        self.part = part

    def wake(self) -> None:
        return

    def _begin(self, seq: SeqId, *, first: int, end: int, lease: str) -> tuple[int, PushedPages]:
        assert (first, end, lease) == (0, 1, LEASE.lease)
        copies = ((PageCopy(rank=RankId(0), slot=SlotId(3), generation=0),),)
        return 1, PushedPages(first_index=0, copies=copies, step=StepId(1))

    async def _cancel_push(self, push: int) -> None:
        assert push == 1

    async def _tell_links(self, notice: object) -> None:
        del notice

    async def _push(self, orders: object) -> list[Any]:
        del orders
        self.pushed.set()
        await self.quiet.wait()
        return []


class Decode:
    """A decode group that takes every claim and is away when one is to be abandoned."""

    def __init__(self) -> None:
        self.abandons = 0
        self.reachable = False

    async def ClaimLease(self, message: decode_pb2.LeaseClaim, timeout: float) -> decode_pb2.HandoffAck:
        del message, timeout
        return decode_pb2.HandoffAck(accepted=True)

    async def AbandonHandoff(
        self, message: decode_pb2.HandoffAbandon, timeout: float
    ) -> decode_pb2.HandoffAck:
        del message, timeout
        self.abandons += 1
        if self.reachable:
            return decode_pb2.HandoffAck(accepted=True)
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "away", ""
        )


class Context:
    """A call whose error is raised to the test."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: object) -> None:
        del code, details, trailing_metadata


CONTEXT = cast("grpc.aio.ServicerContext", Context())


def service(leader: Leader) -> PrefillService:
    settings = SimpleNamespace(
        queue_requests=8, queue_tokens=100, push_timeout_s=1.0, step_timeout_s=1.0, push_range_bytes=8
    )
    blueprint = SimpleNamespace(
        abi=None,
        group="prefill-0",
        incarnation="w",
        settings=settings,
        arena=SimpleNamespace(slot_bytes=8, num_layers=2, layer_slice_bytes=4, page_size=4),
    )
    return PrefillService(cast("GroupBlueprint", blueprint), cast("GroupLeader", leader))


def partner(decode: Decode) -> Partner:
    return Partner(
        group="decode-0",
        incarnation="i",
        ranks={RankId(0): common_pb2.RankAddress(rank=0)},
        decode=cast("decode_pb2_grpc.DecodeStub", decode),
        contact=contact(decode),
    )


@pytest.mark.parametrize("error", [GroupFailed("rank 1 died"), Unavailable("the group is draining")])
def test_a_group_that_ends_while_a_partner_is_met_is_not_joined(
    monkeypatch: pytest.MonkeyPatch, error: SplashError
) -> None:
    async def main() -> None:
        leader = Leader()

        async def meet(self: Partners, lease: common_pb2.Lease) -> Partner:
            del self, lease
            leader.failure = error
            return partner(Decode())

        monkeypatch.setattr(Partners, "meet", meet)
        with pytest.raises(type(error), match=str(error)):
            await service(leader).Run(REQUEST, CONTEXT)
        assert leader.added == 0

    asyncio.run(main())


@pytest.mark.parametrize("filled", ["before", "while a partner is met"])
def test_a_queue_that_is_full_refuses_a_prompt(monkeypatch: pytest.MonkeyPatch, filled: str) -> None:
    async def main() -> None:
        leader = Leader()
        leader.waiting = 98 if filled == "before" else 0

        async def meet(self: Partners, lease: common_pb2.Lease) -> Partner:
            del self, lease
            leader.waiting = 98
            return partner(Decode())

        monkeypatch.setattr(Partners, "meet", meet)
        with pytest.raises(Overloaded):
            await service(leader).Run(REQUEST, CONTEXT)
        assert leader.added == 0

    asyncio.run(main())


def test_pages_are_free_once_nothing_reads_them_though_decode_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        leader, decode = Leader(), Decode()

        async def meet(self: Partners, lease: common_pb2.Lease) -> Partner:
            del self, lease
            return partner(decode)

        monkeypatch.setattr(Partners, "meet", meet)
        monkeypatch.setattr("services.prefill.lease_talk._FIRST_PAUSE_S", 0.0)
        prefill = service(leader)
        running = asyncio.ensure_future(prefill.Run(REQUEST, CONTEXT))
        await leader.pushed.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        # The sequence goes at once; what the push reads is pinned until it has ended.
        assert leader.dropped == [SeqId(1)]
        assert leader.ended == []
        leader.quiet.set()
        while decode.abandons < 3:
            await asyncio.sleep(0)
        assert leader.ended == [1]
        decode.reachable = True
        await prefill.close()
        assert leader.dropped == [SeqId(1)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("places", "fault"),
    [
        ([], r"pages \[0\] have no place to land"),
        ([(0, 0, 9), (0, 0, 8)], r"pages \[0\] have more than one place to land"),
        ([(0, 0, 9), (1, 0, 8)], r"pages \[1\] are not of the prompt, which has 1"),
        ([(0, 0, 9), (-1, 0, 8)], r"pages \[-1\] are not of the prompt"),
        ([(0, 0, 9), (1, 0, 9)], r"pages \[0, 1\] share a slot"),
        ([(0, 5, 9)], r"pages \[0\] land on none of the ranks \[0\]"),
    ],
)
def test_a_lease_that_does_not_fit_the_prompt_is_refused_before_anything_is_claimed(
    monkeypatch: pytest.MonkeyPatch, places: list[tuple[int, int, int]], fault: str
) -> None:
    async def main() -> None:
        leader, decode = Leader(), Decode()

        async def meet(self: Partners, lease: common_pb2.Lease) -> Partner:
            del self, lease
            return partner(decode)

        monkeypatch.setattr(Partners, "meet", meet)
        pages = [common_pb2.LandingPage(index=index, rank=rank, slot=slot) for index, rank, slot in places]
        request = prefill_pb2.PrefillRequest()
        request.CopyFrom(REQUEST)
        del request.lease.pages[:]
        request.lease.pages.extend(pages)
        prefill = service(leader)
        with pytest.raises(InvalidRequest, match=fault) as refused:
            await prefill.Run(request, CONTEXT)
        assert refused.value.param == "lease.pages"
        assert "the sender must pass on the lease" in str(refused.value)
        assert leader.added == 0
        await prefill.close()
        assert decode.abandons == 0

    asyncio.run(main())


def test_a_probe_does_not_count_in_the_time_to_first_token_but_any_user_does() -> None:
    async def main() -> None:
        leader = Leader()
        for purpose, counted in ((Purpose.PROBE, 0), (Purpose.USER, 1)):
            sampling = SamplingParams(max_tokens=0, priority=MOST_PRIORITY, purpose=purpose)
            request = prefill_pb2.PrefillRequest(
                request_id="r", prompt=[1, 2, 3], sampling=sampling_to_pb(sampling)
            )
            await service(leader).Run(request, CONTEXT)
            assert len(leader.first_tokens) == counted

    asyncio.run(main())
