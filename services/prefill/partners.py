"""The decode groups that this prefill group writes to: connections, addresses, and the check of their KV ABI.

Invariant: nothing is written to a group whose ABI has not been compared in its present incarnation.
"""

import asyncio
from dataclasses import dataclass

import grpc.aio

from services.prefill.contact import Contact, Other
from services.prefill.link_relay import LinkRelay
from splash_core.errors import Unavailable
from splash_core.ids import RankId
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import common_pb2, control_pb2, control_pb2_grpc, decode_pb2_grpc
from splash_core.rpc.abi import abi_from_pb
from splash_core.rpc.channels import open_channel
from splash_core.rpc.codec import process_from_pb
from splash_core.rpc.errors import from_rpc_error
from splash_core.transport.abi import KvAbi, abi_diff
from splash_core.transport.mooncake_words import at_term

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """One incarnation of a decode group that may be written to."""

    group: str
    incarnation: str
    ranks: dict[RankId, common_pb2.RankAddress]
    decode: decode_pb2_grpc.DecodeStub
    contact: Contact

    def rank_at(self, rank: RankId, *, term: int) -> common_pb2.RankAddress:
        """Where a rank is written to in a term of ours."""
        known = self.ranks[rank]
        return common_pb2.RankAddress(
            rank=known.rank, transport=at_term(known.transport, term), arena_bytes=known.arena_bytes
        )


class Partners:
    """All decode groups met so far."""

    def __init__(self, abi: KvAbi, relay: LinkRelay, vitals: VitalTasks, *, writer: str) -> None:
        """Nobody is met yet; `vitals` are of this group, `writer` is its incarnation."""
        self._vitals = vitals
        self._abi = abi
        self._writer = writer
        self._contacts: list[Contact] = []
        self._relay = relay
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._known: dict[tuple[str, str], Partner] = {}
        self._pairing: dict[tuple[str, str], asyncio.Task[Partner]] = {}

    async def meet(self, lease: common_pb2.Lease) -> Partner:
        """The group that granted a lease; asked once per incarnation.

        Raises:
            Unavailable: it does not answer, has restarted, or its ABI differs (with a readable diff).
        """
        key = (lease.decode_address, lease.incarnation)
        if key not in self._known:
            # Once, however many ask: a second contact would tell a list that lacks the first one's handoffs.
            if key not in self._pairing:
                self._pairing[key] = asyncio.create_task(self._pair(lease))
                self._pairing[key].add_done_callback(lambda task: self._paired(key, task))
            return await asyncio.shield(self._pairing[key])
        partner = self._known[key]
        self._relay.listen(lease.decode_address, partner.decode)
        return partner

    def _paired(self, key: tuple[str, str], task: asyncio.Task[Partner]) -> None:
        del self._pairing[key]
        if not task.cancelled() and task.exception() is None:
            self._known[key] = task.result()
            self._relay.listen_anew(key[0], task.result().decode)

    async def _pair(self, lease: common_pb2.Lease) -> Partner:
        address = lease.decode_address
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address)
        try:
            described = await control_pb2_grpc.ControlStub(channel).Describe(
                control_pb2.DescribeRequest(), timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=f"decode group at {address}") from error
        if described.incarnation != lease.incarnation:
            raise Unavailable(f"decode group {described.group} has restarted since the lease was granted")
        differences = abi_diff(self._abi, abi_from_pb(described.abi))
        if differences:
            raise Unavailable(f"decode group {described.group} has another KV ABI: {'; '.join(differences)}")
        for key in [key for key in self._known if key[0] == address]:
            del self._known[key]
        decode = decode_pb2_grpc.DecodeStub(channel)
        other = Other(
            group=described.group,
            incarnation=described.incarnation,
            leader=process_from_pb(described.leader),
            sign_within_s=described.sign_within_s,
        )
        contact = Contact(other, decode, self._vitals, writer=self._writer)
        self._contacts = [*(known for known in self._contacts if not known.idle), contact]
        return Partner(
            group=described.group,
            incarnation=described.incarnation,
            ranks={RankId(rank.rank): rank for rank in described.ranks},
            decode=decode,
            contact=contact,
        )

    async def close(self) -> None:
        """Close all connections."""
        for pairing in self._pairing.values():
            pairing.cancel()
        await self._relay.close()
        for contact in self._contacts:
            await contact.close()
        for channel in self._channels.values():
            await channel.close(None)
