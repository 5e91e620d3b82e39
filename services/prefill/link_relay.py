"""Passes what decode groups say of their switches on to this group's ranks, whose writes share the link.

Invariant: a group that is not heard of any more holds nobody back.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import grpc.aio

from splash_core.errors import GroupFailed
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import common_pb2, decode_pb2, decode_pb2_grpc

_log = logging.getLogger("splash.prefill")

Tell = Callable[[common_pb2.LinkNotice], Awaitable[None]]


class LinkRelay:
    """Listens to every decode group that is written to."""

    def __init__(self, tell: Tell, vitals: VitalTasks) -> None:
        """Nobody is listened to yet; `tell` tells our ranks, `vitals` are of our group."""
        self._vitals = vitals
        self._tell = tell
        self._heard: dict[str, common_pb2.LinkNotice] = {}
        self._told = common_pb2.LinkNotice()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._mute: set[str] = set()
        """Groups that do not know of links."""

    def listen(self, address: str, decode: decode_pb2_grpc.DecodeStub) -> None:
        """Go on listening to the group at an address: anew where that has ended, unless it knows no links."""
        if self._tasks[address].done() and address not in self._mute:
            self.listen_anew(address, decode)

    def listen_anew(self, address: str, decode: decode_pb2_grpc.DecodeStub) -> None:
        """Listen to the group at an address, instead of the one that was there before."""
        self._mute.discard(address)
        before = self._tasks.pop(address, None)
        if before is not None:
            before.cancel()
        self._tasks[address] = self._vitals.errand(
            f"ear for links of {address}", self._listen(address, decode)
        )

    async def close(self) -> None:
        """Listen to nobody any more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _listen(self, address: str, decode: decode_pb2_grpc.DecodeStub) -> None:
        with contextlib.suppress(GroupFailed):  # ours has ended: nobody is left to be told
            await self._relay(address, decode)

    async def _relay(self, address: str, decode: decode_pb2_grpc.DecodeStub) -> None:
        try:
            async for notice in decode.WatchLinks(decode_pb2.WatchLinksRequest()):
                await self._hear(address, notice)
        except grpc.aio.AioRpcError as error:
            # It has ended, or does not know of links; its writes fail by themselves, or need no turns.
            _log.info("links of %s are not watched: %s", address, error.details())
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._mute.add(address)
        finally:
            self._heard.pop(address, None)
        await self._pass_on()

    async def _hear(self, address: str, notice: common_pb2.LinkNotice) -> None:
        self._heard[address] = notice
        await self._pass_on()

    async def _pass_on(self) -> None:
        """All groups' notices as one, if it has changed."""
        heard = self._heard.values()
        notice = common_pb2.LinkNotice(
            near=any(entry.near for entry in heard), switching=any(entry.switching for entry in heard)
        )
        if notice != self._told:
            self._told = notice
            await self._tell(notice)
