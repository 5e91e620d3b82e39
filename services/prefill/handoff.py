"""One request's KV on its way to a decode group: claim, push, complete; or abandon.

    claim       decode promises not to reuse the pages, we promise to say when we have stopped
    push        source ranks write; nothing of it is called off half way without waiting for quiet
    complete    decode takes over; or abandon: none of our writes can come any more

Invariant: every claim that may have arrived is followed by exactly one complete or abandon that decode has
acknowledged, sent only after the last write is quiet, whatever becomes of the request meanwhile.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from services.prefill.partners import Partner
from splash_core.errors import Unavailable
from splash_core.ids import RankId, SlotId
from splash_core.layout.ownership import PageCopy
from splash_core.leader.ranks import RankPool
from splash_core.pb import common_pb2, decode_pb2, rank_pb2
from splash_core.rpc.codec import logprobs_to_pb
from splash_core.rpc.errors import from_rpc_error
from splash_core.scheduling.leases import handoff_checksum
from splash_core.scheduling.step import TokenLogprobs
from splash_core.switch.handoff import HandoffWrite, LandingPage, plan_handoff

_log = logging.getLogger("splash.prefill.handoff")
_RPC_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
"""Pauses between two tries to abandon grow from the first to the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """What prefill drew."""

    token: int
    logprobs: TokenLogprobs | None


class Handoff:
    """One lease, from claim to end."""

    def __init__(
        self,
        lease: common_pb2.Lease,
        partner: Partner,
        writer: decode_pb2.Writer,
        ranks: RankPool,
        *,
        push: int,
        push_timeout_s: float,
    ) -> None:
        self._lease = lease
        self._landing = [
            LandingPage(page.index, RankId(page.rank), SlotId(page.slot)) for page in lease.pages
        ]
        self._partner = partner
        self._writer = writer
        self._ranks = ranks
        self._push_id = push
        self._push_timeout_s = push_timeout_s
        self._claim: asyncio.Task[None] | None = None
        self._push: asyncio.Task[list[rank_pb2.PushResult]] | None = None
        self.completed = False

    def start_claim(self) -> None:
        """Send the claim; the prompt is computed meanwhile."""
        self._claim = asyncio.create_task(self._send_claim())

    @property
    def pushing(self) -> bool:
        """True while source ranks may read the pages."""
        return self._push is not None and not self._push.done()

    async def push(self, source: Sequence[tuple[PageCopy, ...]]) -> None:
        """Write all pages of the prompt.

        Raises:
            Unavailable: the claim or a write was refused or failed.
        """
        assert self._claim is not None  # start_claim comes first
        await asyncio.shield(self._claim)
        orders = self._orders(plan_handoff(source, self._landing))
        self._push = asyncio.create_task(
            self._ranks.push(orders, timeout_s=self._push_timeout_s + _RPC_TIMEOUT_S)
        )
        # A cancelled request must not cancel the wait for quiet: `end` goes on waiting for it.
        results = await asyncio.shield(self._push)
        errors = [f"rank {result.rank}: {result.error}" for result in results if result.error]
        if errors:
            raise Unavailable(f"handoff to {self._partner.group} failed: {'; '.join(errors)}")

    async def complete(self, first: FirstToken, *, num_tokens: int) -> None:
        """Tell decode that everything is written.

        Raises:
            Unavailable: decode refuses, or cannot be reached.
        """
        message = decode_pb2.HandoffComplete(
            lease=self._lease.lease,
            attempt=self._lease.attempt,
            incarnation=self._lease.incarnation,
            num_tokens=num_tokens,
            checksum=handoff_checksum(self._landing),
            first_token=first.token,
            first_logprobs=None if first.logprobs is None else logprobs_to_pb(first.logprobs),
            writer=self._writer.incarnation,
        )
        try:
            ack = await self._partner.decode.CompleteHandoff(message, timeout=_RPC_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=f"decode group {self._partner.group}") from error
        # Accepted or refused, decode knows now that we have stopped writing this lease.
        if not ack.accepted:
            raise Unavailable(f"decode group {self._partner.group} refused the handoff: {ack.reason}")
        self.completed = True

    async def quiet(self) -> None:
        """Wait until nothing of this handoff is read or written any more."""
        if self._push is not None:
            await asyncio.gather(self._push, return_exceptions=True)

    async def end(self) -> None:
        """Wait until our writes are quiet, and abandon the lease unless it was completed.

        Returns when decode has answered, whatever it said: it may be another incarnation, or hold the lease
        no more. Until then it is told again and again, for our silence would quarantine its pages for good.
        """
        await self.quiet()
        if self._claim is None or self.completed or self._ranks.failure is not None:
            # Of a failed group decode waits for proof that its ranks are dead; our word would come too early.
            return
        await asyncio.gather(self._claim, return_exceptions=True)
        message = decode_pb2.HandoffAbandon(
            lease=self._lease.lease,
            attempt=self._lease.attempt,
            incarnation=self._lease.incarnation,
            writer=self._writer.incarnation,
        )
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._partner.decode.AbandonHandoff(message, timeout=_RPC_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                _log.info("lease %s is not abandoned yet: %s", self._lease.lease, error.details())
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            else:
                return

    async def _send_claim(self) -> None:
        claim = decode_pb2.LeaseClaim(
            lease=self._lease.lease,
            attempt=self._lease.attempt,
            incarnation=self._lease.incarnation,
            writer=self._writer,
        )
        try:
            ack = await self._partner.decode.ClaimLease(claim, timeout=_RPC_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=f"decode group {self._partner.group}") from error
        if not ack.accepted:
            raise Unavailable(f"decode group {self._partner.group} refused the writer: {ack.reason}")

    def _orders(self, writes: Sequence[HandoffWrite]) -> dict[RankId, rank_pb2.PushPages]:
        """The writes as one order a source rank, one target a destination rank."""
        by_pair: dict[RankId, dict[RankId, list[HandoffWrite]]] = defaultdict(lambda: defaultdict(list))
        for write in writes:
            by_pair[write.src][write.dst].append(write)
        orders: dict[RankId, rank_pb2.PushPages] = {}
        for src, targets in by_pair.items():
            missing = [dst for dst in targets if dst not in self._partner.ranks]
            if missing:
                raise Unavailable(f"decode group {self._partner.group} has no ranks {missing}")
            orders[src] = rank_pb2.PushPages(
                push=self._push_id,
                deadline_s=self._push_timeout_s,
                targets=[
                    rank_pb2.PushTarget(
                        peer=self._partner.ranks[dst],
                        src_slot=[write.src_slot for write in writes],
                        dst_slot=[write.dst_slot for write in writes],
                    )
                    for dst, writes in targets.items()
                ],
            )
        return orders
