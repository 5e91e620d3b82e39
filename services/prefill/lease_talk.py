"""What a prefill group says to a decode group about one lease: claim, complete, abandon.

Invariant: every claim that may have arrived is followed by a complete or abandon that decode has answered,
unless nothing there depends on it any more; and the attempt that a message names is the one that was claimed
last.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

import grpc.aio

from services.prefill.partners import Partner
from splash_core.errors import Unavailable
from splash_core.leader.part import Wait
from splash_core.pb import common_pb2, decode_pb2
from splash_core.rpc.errors import from_rpc_error

_log = logging.getLogger("splash.prefill.handoff")
RPC_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
"""Pauses between two tries to abandon grow from the first to the longest."""


class LeaseTalk:
    """The messages of one lease. The caller says each when it is true."""

    def __init__(self, lease: common_pb2.Lease, partner: Partner, writer: decode_pb2.Writer) -> None:
        self._lease = lease
        self._partner = partner
        self._writer = writer
        self._claimed = False
        self.attempt = lease.attempt
        """The attempt whose pages are being written."""
        self.term = 0
        """In which decode has accepted our claim."""
        self.completed = False
        self._began = time.monotonic()
        self._waits = f"{partner.group} to answer"

    async def claim(self, *, attempt: int) -> None:
        """We are about to write.

        Raises:
            Unavailable: decode refuses (the lease has ended), or cannot be reached.
        """
        self._claimed = True
        self._partner.contact.opened(self._writer.handoff)
        self.attempt = attempt
        claim = decode_pb2.LeaseClaim(
            lease=self._lease.lease,
            attempt=attempt,
            incarnation=self._lease.incarnation,
            writer=self._writer,
        )
        try:
            ack = await self._partner.decode.ClaimLease(claim, timeout=RPC_TIMEOUT_S)
            self._partner.contact.heard()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=f"decode group {self._partner.group}") from error
        if not ack.accepted:
            raise Unavailable(f"decode group {self._partner.group} refused the writer: {ack.reason}")
        self.term = ack.term

    async def complete(self, message: decode_pb2.HandoffComplete) -> None:
        """Everything is written; `message` says what, this adds whose it is.

        Raises:
            Unavailable: decode refuses, or cannot be reached.
        """
        message.lease, message.attempt = self._lease.lease, self.attempt
        message.incarnation, message.writer = self._lease.incarnation, self._writer.incarnation
        message.handoff = self._writer.handoff
        try:
            ack = await self._partner.decode.CompleteHandoff(message, timeout=RPC_TIMEOUT_S)
            self._partner.contact.heard()
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=f"decode group {self._partner.group}") from error
        # Accepted or refused, decode knows now that we have stopped writing this lease.
        if not ack.accepted:
            raise Unavailable(f"decode group {self._partner.group} refused the handoff: {ack.reason}")
        self.completed = True
        self._partner.contact.over(self._writer.handoff)

    async def abandon(self) -> None:
        """We write no more; to be said once nothing of ours can land, unless the handoff was completed.

        Returns when decode has answered, whatever it said: it may be another incarnation, or hold the lease
        no more. Until then it is told again and again, unless nothing depends on it any more: its leader has
        ended, or, where it fences who is silent, has answered nothing for so long.
        """
        if not self._claimed or self.completed:
            return
        contact = self._partner.contact
        contact.over(self._writer.handoff)
        began, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while not await self._abandon_once():
            if reason := contact.needless(began):
                _log.warning("lease %s is abandoned unheard: %s", self._lease.lease, reason)
                break
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def wait(self, pushes: Iterable[int]) -> Wait:
        """What the end of the handoff waits for, while these pushes are under way."""
        numbers = ", ".join(map(str, sorted(pushes)))
        return Wait(
            subject=f"lease {self._lease.lease}",
            waits_for=f"ranks to report push {numbers}" if numbers else self._waits,
            age_s=time.monotonic() - self._began,
        )

    async def _abandon_once(self) -> bool:
        message = decode_pb2.HandoffAbandon(
            lease=self._lease.lease,
            attempt=self.attempt,
            incarnation=self._lease.incarnation,
            writer=self._writer.incarnation,
            handoff=self._writer.handoff,
        )
        try:
            await self._partner.decode.AbandonHandoff(message, timeout=RPC_TIMEOUT_S)
            self._partner.contact.heard()
        except grpc.aio.AioRpcError as error:
            _log.info("lease %s is not abandoned yet: %s", self._lease.lease, error.details())
            self._waits = (
                f"{self._partner.group} to hear that the lease is abandoned (now: {error.details()}), "
                f"{self._partner.contact.bound}"
            )
            return False
        return True
