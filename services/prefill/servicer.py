"""The Prefill service: computes a prompt, draws the first token, hands the KV over.

Invariant: however a call ends, the request holds nothing here afterwards, and its decode group knows that
this group writes no more of its pages. What must outlive a cancelled call runs in tasks that `close` awaits.
"""

import asyncio
import itertools
import time

import grpc.aio

from services.prefill.handoff import FirstToken, Handoff
from services.prefill.link_relay import LinkRelay
from services.prefill.partners import Partners
from splash_core.errors import InvalidRequest, InvariantBroken, SplashError
from splash_core.ids import RequestId, SeqId
from splash_core.leader.build import GroupBlueprint
from splash_core.leader.leader import GroupLeader, Stream
from splash_core.leader.waiting import check_room
from splash_core.pb import decode_pb2, prefill_pb2, prefill_pb2_grpc, rank_pb2
from splash_core.rpc.codec import logprobs_to_pb, sampling_from_pb
from splash_core.rpc.errors import abort
from splash_core.scheduling.events import PrefilledEvent
from splash_core.scheduling.sequence import SeqState


class PrefillService(prefill_pb2_grpc.PrefillServicer):
    """Prefills for one group."""

    def __init__(self, blueprint: GroupBlueprint, leader: GroupLeader) -> None:
        self._blueprint = blueprint
        self._leader = leader
        self._partners = Partners(blueprint.abi, LinkRelay(leader.ranks.tell_links))
        self._writer = decode_pb2.Writer(group=blueprint.group, incarnation=blueprint.incarnation)
        self._pushes = itertools.count(1)
        self._endings: set[asyncio.Task[None]] = set()

    def attach(self, server: grpc.aio.Server) -> None:
        """Register the servicer."""
        prefill_pb2_grpc.add_PrefillServicer_to_server(self, server)

    def ready(self, ranks: tuple[rank_pb2.RankReady, ...], address: str) -> None:
        """The group becomes ready; decode groups know it by the processes of its ranks."""
        del address
        self._writer.ranks.extend(rank.process for rank in ranks)

    async def close(self) -> None:
        """Wait for handoffs that are being ended, then close connections."""
        if self._endings:
            _, left = await asyncio.wait(self._endings, timeout=5.0)
            # Decode does not answer. It will see that our ranks are dead.
            for ending in left:
                ending.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await self._partners.close()

    async def Run(
        self, request: prefill_pb2.PrefillRequest, context: grpc.aio.ServicerContext
    ) -> prefill_pb2.PrefillResult:
        """Prefill one prompt; returns once decode has acknowledged the handoff."""
        try:
            return await self._run(request)
        except SplashError as error:
            await abort(context, error)
            raise

    async def _run(self, request: prefill_pb2.PrefillRequest) -> prefill_pb2.PrefillResult:
        self._leader.check_open()
        self._check_room(len(request.prompt))
        sampling = sampling_from_pb(request.sampling)
        if not request.HasField("lease") and sampling.max_tokens > 0:
            raise InvalidRequest("a prefill without a lease only scores a prompt: max_tokens must be 0")
        handoff = await self._open_handoff(request)
        # Meeting a decode group may take seconds, in which this one may have ended or filled up.
        self._leader.check_open()
        self._check_room(len(request.prompt))
        began = time.monotonic()
        seq: SeqId | None = None
        try:
            if handoff is not None:
                handoff.start_claim()
            seq = self._leader.scheduler.add(RequestId(request.request_id), tuple(request.prompt), sampling)
            stream = self._leader.open_stream(seq)
            event = await _prefilled(stream)
            prefilled = time.monotonic()
            if handoff is not None:
                await self._hand_over(handoff, seq, event, num_tokens=len(request.prompt))
            started = stream.first_step_at or began
            return prefill_pb2.PrefillResult(
                first_token=event.first_token or 0,
                prompt_logprobs=[logprobs_to_pb(entry) for entry in event.prompt_logprobs],
                queue_s=started - began,
                prefill_s=prefilled - started,
                transfer_s=time.monotonic() - prefilled,
            )
        finally:
            if handoff is None or not handoff.pushing:
                # Nothing is being read: the prompt's pages, or its place in the queue, are free at once.
                self._drop(seq)
            if handoff is not None and not handoff.completed:
                self._end_later(seq, handoff)

    async def _hand_over(
        self, handoff: Handoff, seq: SeqId, event: PrefilledEvent, *, num_tokens: int
    ) -> None:
        if event.first_token is None:
            raise InvariantBroken(f"sequence {seq} has a lease but no first token")
        source = self._leader.scheduler.copies(seq)
        size = len(source) * self._blueprint.arena.slot_bytes
        self._leader.pending_push_bytes += size
        try:
            await handoff.push(source)
        finally:
            self._leader.pending_push_bytes -= size
        await handoff.complete(
            FirstToken(token=event.first_token, logprobs=event.first_logprobs), num_tokens=num_tokens
        )

    async def _open_handoff(self, request: prefill_pb2.PrefillRequest) -> Handoff | None:
        if not request.HasField("lease"):
            return None
        partner = await self._partners.meet(request.lease)
        return Handoff(
            request.lease,
            partner,
            self._writer,
            self._leader.ranks,
            push=next(self._pushes),
            push_timeout_s=self._blueprint.settings.push_timeout_s,
        )

    def _end_later(self, seq: SeqId | None, handoff: Handoff) -> None:
        """Free what the request holds on both sides, once nothing of it is being read or written."""

        async def end() -> None:
            # Our own pages are free as soon as nothing reads them, though decode may not hear of it for long.
            await handoff.quiet()
            self._drop(seq)
            await handoff.end()

        ending = asyncio.create_task(end())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def _drop(self, seq: SeqId | None) -> None:
        if seq is not None:
            self._leader.cancel(seq)

    def _check_room(self, new_tokens: int) -> None:
        snapshot = self._leader.scheduler.snapshot()
        check_room(
            waiting=self._leader.scheduler.count(SeqState.WAITING),
            tokens=sum(waiting.prompt_tokens for waiting in snapshot.waiting),
            new_tokens=new_tokens,
            max_requests=self._blueprint.settings.queue_requests,
            max_tokens=self._blueprint.settings.queue_tokens,
        )


async def _prefilled(stream: Stream) -> PrefilledEvent:
    event = await stream.next()
    if not isinstance(event, PrefilledEvent):
        raise InvariantBroken(f"a prefill group told {type(event).__name__} before the prompt was computed")
    return event
