"""The Prefill service: computes a prompt, draws the first token, hands the KV over.

Invariant: however a call ends, the request holds nothing here afterwards, and its decode group knows that
this group writes no more of its pages. What must outlive a cancelled call runs in tasks that `close` awaits.
"""

import asyncio
import itertools
import time

import grpc.aio

from services.prefill.handoff import FirstToken, Handoff, PushRules, landing_of
from services.prefill.link_relay import LinkRelay
from services.prefill.partners import Partners
from splash_core.errors import GroupFailed, InvalidRequest, InvariantBroken, SplashError
from splash_core.ids import RequestId, SeqId
from splash_core.leader.build import GroupBlueprint
from splash_core.leader.leader import GroupLeader
from splash_core.leader.part import Wait
from splash_core.leader.streams import SequenceStream
from splash_core.leader.waiting import check_room
from splash_core.pb import decode_pb2, prefill_pb2, prefill_pb2_grpc, rank_pb2
from splash_core.policy.snapshot import WaitingSequence
from splash_core.rpc.codec import logprobs_to_pb, sampling_from_pb
from splash_core.rpc.errors import abort
from splash_core.scheduling.events import PrefilledEvent
from splash_core.scheduling.step import StepPlan
from splash_core.spec.request import Purpose
from splash_core.switch.handoff import check_landing, layer_ranges


class PrefillService(prefill_pb2_grpc.PrefillServicer):
    """Prefills for one group."""

    def __init__(self, blueprint: GroupBlueprint, leader: GroupLeader) -> None:
        self._blueprint = blueprint
        self._leader = leader
        self._vitals = leader.ranks.vitals
        self._partners = Partners(
            blueprint.abi,
            LinkRelay(leader.ranks.tell_links, self._vitals),
            self._vitals,
            writer=blueprint.incarnation,
        )
        self._writer = decode_pb2.Writer(group=blueprint.group, incarnation=blueprint.incarnation)
        settings, arena = blueprint.settings, blueprint.arena
        self._rules = PushRules(
            timeout_s=settings.push_timeout_s,
            step_timeout_s=settings.step_timeout_s,
            layer_ends=layer_ranges(
                arena.num_layers, slice_bytes=arena.layer_slice_bytes, least_bytes=settings.push_range_bytes
            ),
            slot_bytes=arena.slot_bytes,
        )
        self._handoffs: set[Handoff] = set()
        self._numbers = itertools.count(1)
        leader.join(self)
        self._endings: dict[asyncio.Task[None], Handoff] = {}

    def attach(self, server: grpc.aio.Server) -> None:
        """Register the servicer."""
        prefill_pb2_grpc.add_PrefillServicer_to_server(self, server)

    def ready(self, ranks: tuple[rank_pb2.RankReady, ...], address: str) -> None:
        """The group becomes ready; decode groups know it by the processes of its ranks."""
        del address
        self._writer.ranks.extend(rank.process for rank in ranks)

    def queued(self) -> tuple[WaitingSequence, ...]:
        """Nobody: all requests are the scheduler's."""
        return ()

    def before_step(self) -> None:
        """Order pushes that a switch, or a claim under way, has held up."""
        self._pump()

    def planned(self, plan: StepPlan) -> None:
        """Order pushes of the pages that the step will fill."""
        del plan
        self._pump()

    def failed(self, error: GroupFailed) -> None:
        """Those who wait are told through their streams and their pushes."""

    def waits(self) -> tuple[Wait, ...]:
        """What handoffs that are being ended wait for."""
        return tuple(handoff.waits for handoff in self._endings.values())

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
                self._handoffs.add(handoff)
                handoff.start_claim()
            seq = self._leader.scheduler.add(RequestId(request.request_id), tuple(request.prompt), sampling)
            if handoff is not None:
                handoff.bind(seq)
            stream = self._leader.open_stream(seq)
            event = await _prefilled(stream, handoff)
            prefilled = time.monotonic()
            if event.first_token is not None and sampling.purpose is Purpose.USER:
                self._leader.note_first_token((stream.first_event_at or prefilled) - began)
            if handoff is not None:
                await _hand_over(handoff, event, num_tokens=len(request.prompt))
            started = stream.first_step_at or began
            return prefill_pb2.PrefillResult(
                first_token=event.first_token or 0,
                prompt_logprobs=[logprobs_to_pb(entry) for entry in event.prompt_logprobs],
                queue_s=started - began,
                prefill_s=prefilled - started,
                transfer_s=time.monotonic() - prefilled,
            )
        finally:
            # Pages that a push still reads stay pinned until it is quiet; all else is free at once.
            self._drop(seq)
            if handoff is not None:
                self._handoffs.discard(handoff)
                if not handoff.completed:
                    self._end_later(handoff)

    async def _open_handoff(self, request: prefill_pb2.PrefillRequest) -> Handoff | None:
        if not request.HasField("lease"):
            return None
        partner = await self._partners.meet(request.lease)
        check_landing(
            landing_of(request.lease),
            num_pages=-(-len(request.prompt) // self._blueprint.arena.page_size),
            ranks=partner.ranks.keys(),
            lease=request.lease.lease,
        )
        writer = decode_pb2.Writer(handoff=next(self._numbers))
        writer.MergeFrom(self._writer)
        return Handoff(request.lease, partner, writer, self._leader, self._rules)

    def _pump(self) -> None:
        for handoff in tuple(self._handoffs):
            handoff.pump()

    def _end_later(self, handoff: Handoff) -> None:
        """Free what the request holds in the decode group, once nothing of it is being written."""
        ending = self._vitals.errand("end of a handoff", handoff.end())
        self._endings[ending] = handoff
        ending.add_done_callback(self._endings.pop)

    def _drop(self, seq: SeqId | None) -> None:
        if seq is not None:
            self._leader.cancel(seq)

    def _check_room(self, new_tokens: int) -> None:
        tokens = self._leader.scheduler.kv_tokens()
        check_room(
            waiting=tokens.waiting_sequences,
            tokens=tokens.waiting,
            new_tokens=new_tokens,
            max_requests=self._blueprint.settings.queue_requests,
            max_tokens=self._blueprint.settings.queue_tokens,
        )


async def _prefilled(stream: SequenceStream, handoff: Handoff | None) -> PrefilledEvent:
    """The computed prompt; raises what makes computing it pointless."""
    waiting = asyncio.create_task(stream.next())
    failing = None if handoff is None else asyncio.create_task(handoff.failed())
    try:
        tasks = {waiting} if failing is None else {waiting, failing}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if failing is not None and failing.done() and not waiting.done():
            raise failing.result()
        event = await waiting
    finally:
        for task in (waiting, failing):
            if task is not None:
                task.cancel()
    if not isinstance(event, PrefilledEvent):
        raise InvariantBroken(f"a prefill group told {type(event).__name__} before the prompt was computed")
    return event


async def _hand_over(handoff: Handoff, event: PrefilledEvent, *, num_tokens: int) -> None:
    if event.first_token is None:
        raise InvariantBroken(f"sequence {event.seq} has a lease but no first token")
    first = FirstToken(token=event.first_token, logprobs=event.first_logprobs)
    await handoff.finish(first, num_tokens=num_tokens)
