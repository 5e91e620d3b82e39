"""A worker without a wire, for tests of the registry and the dispatcher."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from splash_core.errors import SplashError, Unavailable
from splash_core.pb import common_pb2, control_pb2, decode_pb2, prefill_pb2


class StubWorker:
    """One group's leader; a test sets its load and what it answers."""

    def __init__(self, address: str, phase: str, *, dtype: str = "fp32") -> None:
        self.address = address
        self.group = address
        """Its name."""
        self.phase = phase
        self.layout, self.layout_epoch, self.pinned = "DP", 0, ""
        self.state_name = "ready"
        self.incarnation = "1"
        self.projected = 0
        self.running = 0
        self.waiting = 0
        self.total = 1000
        self.max_request_tokens = 500
        self.step_age_s = 0.0
        self.abi = common_pb2.KvAbi(version="1", dtype=dtype)
        self.control_error: SplashError | None = None
        self.pin_refused: SplashError | None = None
        """Instead of a pin."""
        self.pin_lost: SplashError | None = None
        """Instead of an answer to one."""
        self.pin_answers: asyncio.Event | None = None
        """If set, the answer to a pin waits for it."""
        self.texts: dict[str, str] = {}
        """What it keeps for a router."""
        self.handed = 0
        """How often it was given something to keep."""
        self.keeps = True
        """Whether its version knows how to."""
        self.told = 0
        """How often it was asked what it keeps."""
        self.kept_error: SplashError | None = None
        """Instead of what it keeps."""
        self.keep_error: SplashError | None = None
        """Instead of taking something to keep."""
        self.run_error: SplashError | None = None
        self.refuse_partner = ""
        """Decode group about which prefill complains."""
        self.tokens: Callable[[], AsyncGenerator[int, None]] | None = None
        self.calls = 0
        self.asked: list[int] = []
        """`max_tokens` of each sequence to decode."""
        self.described = 0
        self.closed = 0

    async def describe(self, *, timeout_s: float) -> control_pb2.GroupDescription:
        del timeout_s
        self.described += 1
        return control_pb2.GroupDescription(
            group=self.group,
            phase=self.phase,
            incarnation=self.incarnation,
            abi=self.abi,
            max_model_len=500,
            max_request_tokens=self.max_request_tokens,
        )

    async def state(self, *, timeout_s: float) -> control_pb2.GroupState:
        del timeout_s
        if self.control_error is not None:
            raise self.control_error
        return control_pb2.GroupState(
            group=self.group,
            phase=self.phase,
            state=self.state_name,
            incarnation=self.incarnation,
            layout=self.layout,
            layout_epoch=self.layout_epoch,
            ranks=2,
            policy=control_pb2.PolicyState(pinned=self.pinned),
            running=self.running,
            waiting=self.waiting,
            kv_tokens_projected=self.projected,
            kv_tokens_total=self.total,
            step_age_s=self.step_age_s,
        )

    async def set_layout(self, request: control_pb2.SetLayoutRequest) -> control_pb2.SetLayoutResult:
        return control_pb2.SetLayoutResult(group=self.address, to_layout=request.layout)

    async def pin(self, request: control_pb2.PinRequest) -> control_pb2.PinResult:
        if self.pin_refused is not None:
            raise self.pin_refused
        self.pinned = request.layout
        if request.layout:
            self.switch(request.layout)
        if self.pin_answers is not None:
            await self.pin_answers.wait()
        if self.pin_lost is not None:
            raise self.pin_lost
        return control_pb2.PinResult(group=self.group, pinned=request.layout)

    def switch(self, layout: str) -> None:
        """It is in another layout from now on."""
        self.layout_epoch += layout != self.layout
        self.layout = layout

    def restart(self, layout: str) -> None:
        """It is another incarnation from now on."""
        self.incarnation += "+"
        self.texts = {}
        self.layout, self.layout_epoch, self.pinned = layout, 0, ""

    async def set_policy(
        self, request: control_pb2.SetPolicyRequest, *, timeout_s: float
    ) -> control_pb2.SetPolicyResult:
        del timeout_s
        return control_pb2.SetPolicyResult(group=self.address)

    async def keep(self, name: str, text: str, *, timeout_s: float) -> None:
        del timeout_s
        if self.keep_error is not None:
            raise self.keep_error
        self.texts[name] = text
        self.handed += 1

    async def kept(self, name: str, *, timeout_s: float) -> str | None:
        del timeout_s
        self.told += 1
        if self.kept_error is not None:
            raise self.kept_error
        if not self.keeps:
            return None
        return self.texts.get(name, "")

    async def decisions(self, *, last: int) -> control_pb2.DecisionsResult:
        del last
        return control_pb2.DecisionsResult()

    async def bundle(self, *, last: int) -> control_pb2.BundleResult:
        del last
        return control_pb2.BundleResult(group=self.address, bundle="{}")

    async def audit(self, *, pages: bool) -> control_pb2.GroupAudit:
        del pages
        return control_pb2.GroupAudit(group=self.address)

    async def drain(self, *, deadline_s: float) -> control_pb2.DrainResult:
        del deadline_s
        return control_pb2.DrainResult(drained=True)

    async def run_prefill(self, request: prefill_pb2.PrefillRequest) -> prefill_pb2.PrefillResult:
        self.calls += 1
        if self.run_error is not None:
            raise self.run_error
        if self.refuse_partner and request.lease.group == self.refuse_partner:
            raise Unavailable(f"decode group {self.refuse_partner} is not reachable")
        return prefill_pb2.PrefillResult()

    async def generate(
        self, request: decode_pb2.DecodeRequest
    ) -> AsyncGenerator[decode_pb2.DecodeEvent, None]:
        self.calls += 1
        self.asked.append(request.sampling.max_tokens)
        try:
            if self.run_error is not None and self.tokens is None:
                raise self.run_error
            yield decode_pb2.DecodeEvent(lease=common_pb2.Lease(lease=request.request_id, group=self.address))
            # Prefill has its turn first, as it has in truth.
            await asyncio.sleep(0.002)
            if self.tokens is not None:
                async for token in self.tokens():
                    yield decode_pb2.DecodeEvent(tokens=decode_pb2.DecodedTokens(tokens=[token]))
            if self.run_error is not None:
                raise self.run_error
            yield decode_pb2.DecodeEvent(finished=decode_pb2.DecodeFinished(reason="length"))
        finally:
            self.closed += 1

    async def close(self) -> None:
        return
