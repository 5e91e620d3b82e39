"""Between a prefill group and a decode group: everything that they say passes here, and may be held up.

A decode group is started with the relay as its advertised address, so no product code knows of it.
Invariant: what no play asks for passes unchanged, and an answer is the decode group's own unless it says so.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from splash_core.pb import control_pb2, control_pb2_grpc, decode_pb2, decode_pb2_grpc
from splash_core.rpc.channels import open_channel

Message = decode_pb2.LeaseClaim | decode_pb2.HandoffAbandon | decode_pb2.HandoffComplete
Act = Callable[["Said"], Awaitable[decode_pb2.HandoffAck]]
CLAIM, ABANDON, COMPLETE = "claim", "abandon", "complete"


class Unanswered(Exception):
    """The caller hears that nobody is there."""


@dataclass(frozen=True)
class Said:
    """One message on its way."""

    kind: str
    message: Message
    relay: "Relay"

    async def deliver(self) -> decode_pb2.HandoffAck:
        """Let it arrive, now; may be called again."""
        return await self.relay.forward(self.kind, self.message)


class Relay(decode_pb2_grpc.DecodeServicer, control_pb2_grpc.ControlServicer):
    """Stands before one decode group."""

    def __init__(self) -> None:
        self.address = ""
        self.heard: list[Said] = []
        """Everything said so far."""
        self._answered: list[Said] = []
        self._server = grpc.aio.server()
        self._channel: grpc.aio.Channel | None = None
        self._acts: dict[tuple[str, str], Act] = {}

    async def open(self) -> None:
        """Listen; `address` is set afterwards."""
        decode_pb2_grpc.add_DecodeServicer_to_server(self, self._server)
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stand_before(self, address: str) -> None:
        """Pass on to the group at `address` from now on."""
        if self._channel is not None:
            await self._channel.close(None)
        self._channel = open_channel(address)

    async def close(self) -> None:
        """Listen no more."""
        await self._server.stop(None)
        if self._channel is not None:
            await self._channel.close(None)

    def when(self, kind: str, lease: str, act: Act) -> None:
        """Do `act` instead of passing on the messages of a kind about a lease."""
        self._acts[kind, lease] = act

    def forget_acts(self) -> None:
        """Pass on everything again."""
        self._acts.clear()

    def forget(self) -> None:
        """Begin anew: pass on everything, nothing was said."""
        self.forget_acts()
        self.heard.clear()
        self._answered.clear()

    def about(self, kind: str, lease: str) -> list[Said]:
        """What has been said of a lease."""
        return [said for said in self.heard if said.kind == kind and said.message.lease == lease]

    def answered(self, kind: str, lease: str) -> bool:
        """True once the decode group has answered a message of a kind about a lease."""
        return any(said in self._answered for said in self.about(kind, lease))

    async def forward(self, kind: str, message: Message) -> decode_pb2.HandoffAck:
        """Say it to the decode group."""
        assert self._channel is not None
        stub = decode_pb2_grpc.DecodeStub(self._channel)
        if kind == CLAIM:
            return await stub.ClaimLease(message)
        if kind == ABANDON:
            return await stub.AbandonHandoff(message)
        return await stub.CompleteHandoff(message)

    async def ClaimLease(self, request: decode_pb2.LeaseClaim, context: grpc.aio.ServicerContext):  # noqa: ANN201
        return await self._pass(CLAIM, request, context)

    async def AbandonHandoff(self, request: decode_pb2.HandoffAbandon, context: grpc.aio.ServicerContext):  # noqa: ANN201
        return await self._pass(ABANDON, request, context)

    async def CompleteHandoff(self, request: decode_pb2.HandoffComplete, context: grpc.aio.ServicerContext):  # noqa: ANN201
        return await self._pass(COMPLETE, request, context)

    async def TellHandoffs(self, request: decode_pb2.OpenHandoffs, context: grpc.aio.ServicerContext):  # noqa: ANN201
        assert self._channel is not None
        try:
            return await decode_pb2_grpc.DecodeStub(self._channel).TellHandoffs(request)
        except grpc.aio.AioRpcError as error:
            await _abort_like(context, error)

    async def Describe(self, request: control_pb2.DescribeRequest, context: grpc.aio.ServicerContext):  # noqa: ANN201
        assert self._channel is not None
        try:
            return await control_pb2_grpc.ControlStub(self._channel).Describe(request)
        except grpc.aio.AioRpcError as error:
            await _abort_like(context, error)

    async def _pass(
        self, kind: str, message: Message, context: grpc.aio.ServicerContext
    ) -> decode_pb2.HandoffAck | None:
        said = Said(kind, message, self)
        self.heard.append(said)
        act = self._acts.get((kind, message.lease))
        try:
            ack = await (said.deliver() if act is None else act(said))
            self._answered.append(said)
            return ack
        except Unanswered as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except grpc.aio.AioRpcError as error:
            await _abort_like(context, error)


async def _abort_like(context: grpc.aio.ServicerContext, error: grpc.aio.AioRpcError) -> None:
    trailing: Any = error.trailing_metadata()
    await context.abort(error.code(), error.details() or "", trailing)


class Held:
    """An act that keeps messages here until `release`."""

    def __init__(self, *, after: bool = False) -> None:
        """Hold the message, or (`after`) only its answer."""
        self._after = after
        self._released = asyncio.Event()
        self.holds = asyncio.Event()
        """Set once there is one."""

    async def __call__(self, said: Said) -> decode_pb2.HandoffAck:
        ack = await said.deliver() if self._after else None
        self.holds.set()
        await self._released.wait()
        return await said.deliver() if ack is None else ack

    def release(self) -> None:
        """Let it go on."""
        self._released.set()
