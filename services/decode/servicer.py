"""The Decode service: pages first, then KV, then tokens.

Invariant: however a call ends, the request holds nothing here afterwards, except pages that a writer may
still write: those stay quarantined until the writer says that it has stopped, or is proven unable to write.
"""

import asyncio
import time
from collections.abc import AsyncIterator

import grpc.aio

from splash_core.errors import Conflict, GroupFailed, SplashError
from splash_core.ids import Incarnation, LeaseId, RequestId
from splash_core.leader.build import GroupBlueprint
from splash_core.leader.leader import GroupLeader
from splash_core.leader.part import Wait
from splash_core.leader.streams import SeqEvent, SequenceStream
from splash_core.leader.waiting import Arrival, WaitingRoom
from splash_core.leader.writers import DeathIsFence, RanksFence, Writer, WriterWatch
from splash_core.pb import common_pb2, decode_pb2, decode_pb2_grpc, rank_pb2
from splash_core.policy.snapshot import WaitingSequence
from splash_core.rpc.codec import logprobs_from_pb, logprobs_to_pb, process_from_pb, sampling_from_pb
from splash_core.rpc.errors import abort
from splash_core.scheduling.events import FinishedEvent, TokenEvent
from splash_core.scheduling.leases import Completion, Grant
from splash_core.scheduling.step import StepPlan
from splash_core.scheduling.writers import handoff_writer, handoffs_over
from splash_core.scheduling.written import Written

_SWEEP_S = 0.5
"""How often writers of quarantined pages are looked after."""


class DecodeService(decode_pb2_grpc.DecodeServicer):
    """Generates for one decode group."""

    def __init__(self, blueprint: GroupBlueprint, leader: GroupLeader) -> None:
        self._blueprint = blueprint
        self._leader = leader
        self._address = ""
        fence = (
            RanksFence(leader.ranks, silence_s=blueprint.sign_within_s)
            if blueprint.sign_within_s
            else DeathIsFence()
        )
        self._writers = WriterWatch(fence, writers=lambda: leader.scheduler.writers, free=self._freed)
        self._room = WaitingRoom(
            self._reserve,
            self._give_back,
            max_requests=blueprint.settings.queue_requests,
            max_tokens=blueprint.settings.queue_tokens,
        )
        leader.join(self)
        self._sweeper: asyncio.Task[None] | None = None

    def attach(self, server: grpc.aio.Server) -> None:
        """Register the servicer."""
        decode_pb2_grpc.add_DecodeServicer_to_server(self, server)

    def ready(self, ranks: tuple[rank_pb2.RankReady, ...], address: str) -> None:
        """The group becomes ready; prefill groups reach it at `address`."""
        del ranks
        self._address = address
        self._sweeper = self._leader.ranks.vitals.keep("watch of writers", self._sweep())

    def queued(self) -> tuple[WaitingSequence, ...]:
        """Requests that wait for pages."""
        return self._room.queued()

    def before_step(self) -> None:
        """Lease pages to those who wait, in order, while there is room."""
        self._room.pump()

    def planned(self, plan: StepPlan) -> None:
        """Nothing goes with a step but its tokens."""

    def failed(self, error: GroupFailed) -> None:
        """The group has ended: tell those who wait for pages."""
        self._room.fail(error)

    def waits(self) -> tuple[Wait, ...]:
        """What writers have yet to do."""
        return self._writers.waits()

    async def close(self) -> None:
        """Stop looking after writers."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self._writers.close()

    async def Generate(self, request: decode_pb2.DecodeRequest, context: grpc.aio.ServicerContext) -> None:
        """Lease, tokens, end."""
        try:
            self._leader.check_open()
            arrival = Arrival(
                request_id=RequestId(request.request_id),
                prompt=tuple(request.prompt),
                sampling=sampling_from_pb(request.sampling),
                since=time.monotonic(),
            )
            grant = await self._room.admit(arrival)
            stream = self._leader.open_stream(grant.seq)
            try:
                await context.write(decode_pb2.DecodeEvent(lease=self._lease(grant)))
                await _tell(stream, context)
            finally:
                self._leader.cancel(grant.seq)
        except SplashError as error:
            await abort(context, error)

    async def ClaimLease(
        self, request: decode_pb2.LeaseClaim, context: grpc.aio.ServicerContext
    ) -> decode_pb2.HandoffAck:
        """A prefill group is about to write."""
        del context
        writer = Writer(
            group=request.writer.group,
            incarnation=Incarnation(request.writer.incarnation),
            ranks=tuple(process_from_pb(process) for process in request.writer.ranks),
        )
        try:
            self._writers.check(writer.incarnation)
            self._leader.scheduler.claim(
                LeaseId(request.lease),
                attempt=request.attempt,
                incarnation=Incarnation(request.incarnation),
                writer=handoff_writer(writer.incarnation, request.writer.handoff),
            )
        except Conflict as error:
            return decode_pb2.HandoffAck(accepted=False, reason=str(error))
        return decode_pb2.HandoffAck(accepted=True, term=self._writers.claimed(writer))

    async def TellHandoffs(
        self, request: decode_pb2.OpenHandoffs, context: grpc.aio.ServicerContext
    ) -> decode_pb2.HandoffAck:
        """A writer lives; what it does not name is over."""
        del context
        ours = self._blueprint.incarnation
        if request.incarnation != ours:
            reason = f"incarnation: this is {ours!r}, not {request.incarnation!r}"
            return decode_pb2.HandoffAck(accepted=False, reason=reason)
        self._writers.heard(Incarnation(request.writer))
        over = handoffs_over(
            self._leader.scheduler.writers, request.writer, still=request.handoffs, newest=request.newest
        )
        for name in over:
            self._leader.scheduler.writer_gone(name)
        if over:
            self._leader.wake()
        return decode_pb2.HandoffAck(accepted=True)

    async def AbandonHandoff(
        self, request: decode_pb2.HandoffAbandon, context: grpc.aio.ServicerContext
    ) -> decode_pb2.HandoffAck:
        """The writer will not write any more."""
        del context
        self._writers.heard(Incarnation(request.writer))
        try:
            self._leader.scheduler.abandon(
                LeaseId(request.lease),
                attempt=request.attempt,
                incarnation=Incarnation(request.incarnation),
                writer=handoff_writer(request.writer, request.handoff),
            )
        except Conflict as error:
            return decode_pb2.HandoffAck(accepted=False, reason=str(error))
        self._leader.wake()
        return decode_pb2.HandoffAck(accepted=True)

    async def CompleteHandoff(
        self, request: decode_pb2.HandoffComplete, context: grpc.aio.ServicerContext
    ) -> decode_pb2.HandoffAck:
        """All pages of the lease are written."""
        del context
        self._writers.heard(Incarnation(request.writer))
        completion = Completion(
            lease=LeaseId(request.lease),
            attempt=request.attempt,
            incarnation=Incarnation(request.incarnation),
            writer=handoff_writer(request.writer, request.handoff),
            num_tokens=request.num_tokens,
            checksum=request.checksum,
            written=Written(pages=request.num_pages, layers=request.num_layers, num_bytes=request.bytes),
            first_token=request.first_token,
            first_position=request.first_position,
        )
        logprobs = logprobs_from_pb(request.first_logprobs) if request.HasField("first_logprobs") else None
        try:
            events = self._leader.scheduler.landed(completion, first_logprobs=logprobs)
        except Conflict as error:
            self._leader.wake()
            return decode_pb2.HandoffAck(accepted=False, reason=str(error))
        self._leader.deliver(events)
        self._leader.wake()
        return decode_pb2.HandoffAck(accepted=True)

    async def WatchLinks(
        self, request: decode_pb2.WatchLinksRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[common_pb2.LinkNotice]:
        """What switches here need of the links that writers use."""
        del request, context
        async for notice in self._leader.notices.watch():
            yield notice

    def _reserve(self, arrival: Arrival) -> Grant | None:
        return self._leader.scheduler.reserve(arrival.request_id, arrival.prompt, arrival.sampling)

    def _give_back(self, grant: Grant) -> None:
        self._leader.cancel(grant.seq)

    def _lease(self, grant: Grant) -> common_pb2.Lease:
        return common_pb2.Lease(
            lease=grant.lease,
            attempt=grant.attempt,
            incarnation=grant.incarnation,
            group=self._blueprint.group,
            decode_address=self._address,
            pages=[
                common_pb2.LandingPage(index=page.index, rank=page.rank, slot=page.slot)
                for page in grant.pages
            ],
        )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._writers.look()

    def _freed(self, writer: Incarnation) -> None:
        self._leader.scheduler.writer_gone(writer)
        self._leader.wake()


async def _tell(stream: SequenceStream, context: grpc.aio.ServicerContext) -> None:
    """Write a sequence's events until it has finished; tokens that are ready together travel together."""
    while True:
        events: list[SeqEvent] = [await stream.next(), *stream.take_ready()]
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        if tokens:
            told = [logprobs_to_pb(event.logprobs) for event in tokens if event.logprobs is not None]
            message = decode_pb2.DecodedTokens(tokens=[event.token for event in tokens], logprobs=told)
            await context.write(decode_pb2.DecodeEvent(tokens=message))
        for event in events:
            if isinstance(event, FinishedEvent):
                finished = decode_pb2.DecodeFinished(
                    reason=event.reason.value, stop_token=event.stop_token, wait_s=stream.wait_s
                )
                await context.write(decode_pb2.DecodeEvent(finished=finished))
                return
