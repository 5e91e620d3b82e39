"""What the router needs of a worker group: one small protocol, and its gRPC form.

Invariant: every failure leaves here as a `SplashError` that keeps the worker's class of error (user,
overloaded, unavailable, deadline), so the client sees the status that the worker meant.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable
from pathlib import PurePath
from typing import Any, Protocol, TypeVar

import grpc.aio

from splash_core.errors import SplashError, Unavailable
from splash_core.pb import (
    control_pb2,
    control_pb2_grpc,
    decode_pb2,
    decode_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)
from splash_core.rpc.channels import open_channel
from splash_core.rpc.errors import DETAIL_KEY, from_rpc_error

T = TypeVar("T")

_LOG = logging.getLogger("splash.router")


class Worker(Protocol):
    """The leader of one group."""

    @property
    def address(self) -> str:
        """Where the leader listens."""
        ...

    async def describe(self, *, timeout_s: float) -> control_pb2.GroupDescription:
        """What does not change during an incarnation."""
        ...

    async def state(self, *, timeout_s: float) -> control_pb2.GroupState:
        """Load and liveness now."""
        ...

    async def set_layout(self, request: control_pb2.SetLayoutRequest) -> control_pb2.SetLayoutResult:
        """Switch; answers when the switch is done."""
        ...

    async def pin(self, request: control_pb2.PinRequest) -> control_pb2.PinResult:
        """Hold a layout until unpinned."""
        ...

    async def set_policy(
        self, request: control_pb2.SetPolicyRequest, *, timeout_s: float
    ) -> control_pb2.SetPolicyResult:
        """Take a version of the policy; answers when it is in force."""
        ...

    async def keep(self, name: str, text: str, *, timeout_s: float) -> None:
        """Have it keep a text for as long as it lives."""
        ...

    async def kept(self, name: str, *, timeout_s: float) -> str | None:
        """What it keeps under a name; empty if nothing, None if its version keeps no texts."""
        ...

    async def decisions(self, *, last: int) -> control_pb2.DecisionsResult:
        """The newest decision records of the layout policy."""
        ...

    async def bundle(self, *, last: int) -> control_pb2.BundleResult:
        """The newest evaluations of the layout policy, to be replayed."""
        ...

    async def audit(self, *, pages: bool) -> control_pb2.GroupAudit:
        """Every slot, lease and push of the group; one entry a page, too, if asked for."""
        ...

    async def drain(self, *, deadline_s: float) -> control_pb2.DrainResult:
        """Refuse new requests, finish those running."""
        ...

    async def run_prefill(self, request: prefill_pb2.PrefillRequest) -> prefill_pb2.PrefillResult:
        """Prefill one prompt and hand its KV over; cancelling frees what it holds."""
        ...

    def generate(self, request: decode_pb2.DecodeRequest) -> AsyncGenerator[decode_pb2.DecodeEvent, None]:
        """Lease, tokens, end; closing the iterator cancels and frees everything."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class GrpcWorker:
    """A leader reached over gRPC."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._group = PurePath(address).stem if address.startswith("unix:") else ""
        """Empty until it has told its name; a socket is called like its group."""
        self._channel = open_channel(address)
        self._control = control_pb2_grpc.ControlStub(self._channel)
        self._prefill = prefill_pb2_grpc.PrefillStub(self._channel)
        self._decode = decode_pb2_grpc.DecodeStub(self._channel)

    async def describe(self, *, timeout_s: float) -> control_pb2.GroupDescription:
        """See `Worker`."""
        call = self._control.Describe(control_pb2.DescribeRequest(), timeout=timeout_s)
        description: control_pb2.GroupDescription = await self._call(call)
        self._group = description.group
        return description

    async def state(self, *, timeout_s: float) -> control_pb2.GroupState:
        """See `Worker`."""
        return await self._call(self._control.GetState(control_pb2.StateRequest(), timeout=timeout_s))

    async def set_layout(self, request: control_pb2.SetLayoutRequest) -> control_pb2.SetLayoutResult:
        """See `Worker`."""
        return await self._call(self._control.SetLayout(request))

    async def pin(self, request: control_pb2.PinRequest) -> control_pb2.PinResult:
        """See `Worker`."""
        return await self._call(self._control.Pin(request))

    async def set_policy(
        self, request: control_pb2.SetPolicyRequest, *, timeout_s: float
    ) -> control_pb2.SetPolicyResult:
        """See `Worker`."""
        return await self._call(self._control.SetPolicy(request, timeout=timeout_s))

    async def keep(self, name: str, text: str, *, timeout_s: float) -> None:
        """See `Worker`."""
        request = control_pb2.KeepRequest(name=name, text=text)
        await self._call(self._control.Keep(request, timeout=timeout_s))

    async def kept(self, name: str, *, timeout_s: float) -> str | None:
        """See `Worker`."""
        request = control_pb2.KeptRequest(name=name)
        try:
            return (await self._control.GetKept(request, timeout=timeout_s)).text
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise self._meant(error) from error

    async def decisions(self, *, last: int) -> control_pb2.DecisionsResult:
        """See `Worker`."""
        return await self._call(self._control.Decisions(control_pb2.DecisionsRequest(last=last)))

    async def bundle(self, *, last: int) -> control_pb2.BundleResult:
        """See `Worker`."""
        return await self._call(self._control.Bundle(control_pb2.BundleRequest(last=last)))

    async def audit(self, *, pages: bool) -> control_pb2.GroupAudit:
        """See `Worker`."""
        return await self._call(self._control.Audit(control_pb2.AuditRequest(pages=pages)))

    async def drain(self, *, deadline_s: float) -> control_pb2.DrainResult:
        """See `Worker`."""
        return await self._call(self._control.Drain(control_pb2.DrainRequest(deadline_s=deadline_s)))

    async def run_prefill(self, request: prefill_pb2.PrefillRequest) -> prefill_pb2.PrefillResult:
        """See `Worker`."""
        return await self._call(self._prefill.Run(request))

    async def generate(
        self, request: decode_pb2.DecodeRequest
    ) -> AsyncGenerator[decode_pb2.DecodeEvent, None]:
        """See `Worker`."""
        call = self._decode.Generate(request)
        try:
            async for event in call:
                yield event
        except grpc.aio.AioRpcError as error:
            raise self._meant(error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """See `Worker`."""
        await self._channel.close(None)

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise self._meant(error) from error

    def _meant(self, error: grpc.aio.AioRpcError) -> SplashError:
        """The error that the group raised; of a broken connection, which group it was of and who must act."""
        meant = from_rpc_error(error, peer=self._name)
        trailing: Any = error.trailing_metadata() or ()
        told = any(key == DETAIL_KEY for key, _ in trailing)
        if isinstance(meant, Unavailable) and not told:
            fields = {"worker": self.address, "code": error.code().name, "details": error.details()}
            _LOG.info("call failed", extra={"fields": fields})
            return Unavailable(_silent(self._name, error.code()))
        return meant

    @property
    def _name(self) -> str:
        if self.address.startswith("unix:"):
            return f"group {self._group}"
        return f"group {self._group} ({self.address})" if self._group else f"the group at {self.address}"


def _silent(name: str, code: grpc.StatusCode) -> str:
    """What the operator reads of a group that gave no answer of its own; the log has gRPC's words."""
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"{name} does not answer: see its log, restart it at the same address"
    return f"{name} gave no answer ({code.name}): see its log; does it run the router's version?"
