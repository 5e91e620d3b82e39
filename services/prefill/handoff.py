"""One request's KV on its way to a decode group: claim, push as chunks finish, complete; or abandon.

    claim       decode promises not to reuse the pages, we promise to say when we have stopped
    push        pages leave with the step that fills them, layer range by layer range
    renew       the prompt was preempted and is computed again: when all is quiet, the next attempt is claimed
                and all pages are pushed anew, so that pages of two computations never mix
    complete    every page is reported as written: decode takes over; or abandon: none of our writes can come

Invariant: a completion names exactly the pages that source ranks have reported as written whole in the
attempt that it names, and nothing is said to decode about an end before the last write is quiet.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from services.prefill.lease_talk import RPC_TIMEOUT_S, LeaseTalk
from services.prefill.partners import Partner
from splash_core.errors import GroupFailed, InvariantBroken, SplashError, Unavailable
from splash_core.ids import RankId, SeqId, SlotId, StepId
from splash_core.leader.leader import GroupLeader
from splash_core.leader.part import Wait
from splash_core.pb import common_pb2, decode_pb2, rank_pb2
from splash_core.rpc.codec import logprobs_to_pb
from splash_core.scheduling.leases import handoff_checksum
from splash_core.scheduling.step import TokenLogprobs
from splash_core.scheduling.under_way import MOST_UNDER_WAY
from splash_core.switch.handoff import HandoffWrite, LandingPage, plan_handoff

_log = logging.getLogger("splash.prefill.handoff")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """What prefill drew."""

    token: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRules:
    """How a group pushes."""

    timeout_s: float
    """For one push, from its first write on."""
    step_timeout_s: float
    """Longest time of a step. A push may be held back by all steps under way at its order: it names the last
    of them, which begins when those before it have ended."""
    layer_ends: tuple[int, ...]
    """Ends of the layer ranges that leave one after the other."""
    slot_bytes: int

    @property
    def report_s(self) -> float:
        """From its order on, a push is reported by then unless its peer stands still."""
        return MOST_UNDER_WAY * self.step_timeout_s + self.timeout_s + RPC_TIMEOUT_S


def landing_of(lease: common_pb2.Lease) -> list[LandingPage]:
    """Where the pages of a lease are to land."""
    return [LandingPage(page.index, RankId(page.rank), SlotId(page.slot)) for page in lease.pages]


class Handoff:
    """One lease, from claim to end. Everything runs on the leader's event loop."""

    def __init__(
        self,
        lease: common_pb2.Lease,
        partner: Partner,
        writer: decode_pb2.Writer,
        leader: GroupLeader,
        rules: PushRules,
    ) -> None:
        self._lease = lease
        self._landing = landing_of(lease)
        self._partner = partner
        self._leader = leader
        self._rules = rules
        self._talk = LeaseTalk(lease, partner, writer)
        self._claim: asyncio.Task[None] | None = None
        self._open = False
        """True while pages may be pushed: the present attempt is claimed and has not failed."""
        self._seq: SeqId | None = None
        self._run = 0
        self._ordered = 0
        self._pushes: dict[int, asyncio.Task[None]] = {}
        self._written: set[LandingPage] = set()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._failure: asyncio.Future[SplashError] = asyncio.get_running_loop().create_future()

    @property
    def completed(self) -> bool:
        """True once decode has taken over."""
        return self._talk.completed

    def start_claim(self) -> None:
        """Send the claim; the prompt is computed meanwhile."""
        self._claim = asyncio.create_task(self._claimed(self._talk.attempt))

    def bind(self, seq: SeqId) -> None:
        """The sequence that computes the prompt."""
        self._seq = seq

    async def failed(self) -> SplashError:
        """Return once the handoff cannot succeed any more: the prompt need not be computed further."""
        return await asyncio.shield(self._failure)

    def pump(self) -> None:
        """Order pushes of all pages that may leave now. To be called whenever that may have changed."""
        if self._seq is None or not self._open:
            return
        outgoing = self._leader.scheduler.pushes.outgoing(self._seq, first=self._ordered)
        if outgoing is None:
            return
        if outgoing.run != self._run:
            self._run = outgoing.run
            if self._ordered:
                self._open = False
                self._claim = asyncio.create_task(self._renewed())
                return
        if outgoing.pages > self._ordered:
            first, self._ordered = self._ordered, outgoing.pages
            self._order(self._seq, first, outgoing.pages)

    async def finish(self, first: FirstToken, *, num_tokens: int) -> None:
        """The prompt is computed: wait until all its pages are written, and tell decode.

        Raises:
            Unavailable: the claim, a write or the completion was refused, failed, or is not over in time.
        """
        while len(self._written) < len(self._landing) or self._pushes:
            self._changed.clear()
            self.pump()
            if self._failure.done():
                raise self._failure.result()
            await self._changed.wait()
        await self._talk.complete(
            decode_pb2.HandoffComplete(
                num_tokens=num_tokens,
                num_pages=len(self._written),
                num_layers=self._rules.layer_ends[-1],
                bytes=self._bytes,
                checksum=handoff_checksum(self._written),
                first_token=first.token,
                first_position=num_tokens,
                first_logprobs=None if first.logprobs is None else logprobs_to_pb(first.logprobs),
            )
        )

    async def quiet(self) -> None:
        """Wait until nothing of this handoff is read or written any more."""
        while self._pushes:
            await asyncio.gather(*self._pushes.values(), return_exceptions=True)

    @property
    def waits(self) -> Wait:
        """What its end waits for."""
        return self._talk.wait(self._pushes)

    async def end(self) -> None:
        """Push nothing more, wait until all is quiet, and abandon the lease unless it was completed."""
        self._open = False
        self._seq = None
        with contextlib.suppress(GroupFailed):
            for push in tuple(self._pushes):
                await self._leader.ranks.cancel_push(push)
        if self._claim is not None:
            # A renewal, too: nothing may be claimed after we have abandoned.
            await asyncio.gather(self._claim, return_exceptions=True)
        await self.quiet()
        # Of a failed group decode waits for proof that its ranks are dead; our word would come too early.
        if self._leader.ranks.failure is None:
            await self._talk.abandon()

    async def _claimed(self, attempt: int) -> None:
        try:
            await self._talk.claim(attempt=attempt)
            self._open = True
            self._changed.set()
            self.pump()
        except Exception as error:  # nobody awaits this task's result: the handoff must hear of it
            self._fail(error)

    async def _renewed(self) -> None:
        """The pages pushed so far are of a computation that was given up."""
        await self.quiet()
        if self._seq is None:
            return
        self._written.clear()
        self._bytes = self._ordered = 0
        await self._claimed(self._talk.attempt + 1)

    def _order(self, seq: SeqId, first: int, end: int) -> None:
        """Push pages `first … end`."""
        book = self._leader.scheduler.pushes
        push, pages = book.begin(seq, first=first, end=end, lease=self._lease.lease)
        try:
            writes = plan_handoff(pages.copies, self._landing, first_index=first)
            orders = self._orders(push, pages.step, writes)
        except Exception as error:  # of this request alone: nothing has been sent, and nothing stays pinned
            book.end(push)
            self._fail(error)
            return
        self._leader.pending_push_bytes += len(writes) * self._rules.slot_bytes
        self._pushes[push] = asyncio.create_task(self._push(push, orders, writes))

    async def _push(
        self, push: int, orders: dict[RankId, rank_pb2.PushPages], writes: Sequence[HandoffWrite]
    ) -> None:
        """One push until it is quiet, in a task of its own: a cancelled request does not cancel it.

        One that is late fails its request and nothing else. Its pages stay pinned and its lease claimed until
        the ranks report it: without their word nobody knows whether they still write.
        """
        loop = asyncio.get_running_loop()
        late = loop.call_later(self._rules.report_s, self._late, push, writes)
        try:
            results = await self._leader.ranks.push(orders)
            if late.when() <= loop.time():
                _log.warning("push %d of lease %s is quiet at last", push, self._lease.lease)
            errors = [f"rank {result.rank}: {result.error}" for result in results if result.error]
            if errors:
                self._fail(Unavailable(f"handoff to {self._partner.group} failed: {'; '.join(errors)}"))
            else:
                self._written.update(LandingPage(w.index, w.dst, w.dst_slot) for w in writes)
                self._bytes += sum(result.bytes for result in results)
        except Exception as error:  # as for a claim
            self._fail(error)
        finally:
            late.cancel()
            del self._pushes[push]
            self._leader.pending_push_bytes -= len(writes) * self._rules.slot_bytes
            self._leader.scheduler.pushes.end(push)
            self._changed.set()
            self._leader.wake()

    def _late(self, push: int, writes: Sequence[HandoffWrite]) -> None:
        """A push has not been reported in time."""
        peers = ", ".join(map(str, sorted({write.dst for write in writes})))
        sources = ", ".join(map(str, sorted({write.src for write in writes})))
        text = (
            f"handoff to {self._partner.group} failed: push {push} to its ranks {peers} is not over after "
            f"{self._rules.report_s:g} s; if that group stands still, restart it"
        )
        _log.warning(
            "%s; until ranks %s report it, its pages stay pinned, and lease %s is not abandoned",
            text,
            sources,
            self._lease.lease,
        )
        self._fail(Unavailable(text))

    def _fail(self, error: Exception) -> None:
        self._open = False
        if not isinstance(error, SplashError):
            _log.error("the handoff of lease %s broke", self._lease.lease, exc_info=error)
            error = InvariantBroken(f"handoff to {self._partner.group}: {type(error).__name__}: {error}")
        if not self._failure.done():
            self._failure.set_result(error)
        self._changed.set()

    def _orders(
        self, push: int, step: StepId, writes: Sequence[HandoffWrite]
    ) -> dict[RankId, rank_pb2.PushPages]:
        """The writes as one order a source rank, one target a destination rank."""
        by_pair: dict[RankId, dict[RankId, list[HandoffWrite]]] = defaultdict(lambda: defaultdict(list))
        for write in writes:
            by_pair[write.src][write.dst].append(write)
        missing = {write.dst for write in writes} - self._partner.ranks.keys()
        if missing:
            raise Unavailable(f"decode group {self._partner.group} has no ranks {sorted(missing)}")
        return {
            src: rank_pb2.PushPages(
                push=push,
                deadline_s=self._rules.timeout_s,
                step=step,
                layer_ends=self._rules.layer_ends,
                lease=self._lease.lease,
                attempt=self._talk.attempt,
                incarnation=self._lease.incarnation,
                group=self._partner.group,
                targets=[
                    rank_pb2.PushTarget(
                        peer=self._partner.rank_at(dst, term=self._talk.term),
                        src_slot=[write.src_slot for write in writes],
                        dst_slot=[write.dst_slot for write in writes],
                    )
                    for dst, writes in targets.items()
                ],
            )
            for src, targets in by_pair.items()
        }
