"""A prefill and a decode leader without weights: scripted tokens over the real wire.

For trying the gateway and for its tests. Invariant: what the groups hold (leases, running calls) is counted,
and is zero whenever no request runs, so a test can see whether a client that left has freed both phases.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import grpc.aio

from services.router.fake_control import CallCounts, FakeControl, FakeGroup
from splash_core.errors import SplashError, Unavailable
from splash_core.pb import (
    common_pb2,
    control_pb2_grpc,
    decode_pb2,
    decode_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)
from splash_core.rpc.errors import abort

_RIGHT_TOKENS, _WRONG_BY = 3, 0.25

Script = Callable[[Sequence[int], common_pb2.Sampling], Sequence[int]]
"""The tokens that a prompt is answered with, at least `max_tokens` of them or ending with a stop token."""


@dataclass(slots=True, kw_only=True)
class Faults:
    """What goes wrong; a test sets these while requests run."""

    prefill_error: SplashError | None = None
    decode_error: SplashError | None = None
    """Instead of a lease."""
    break_after: int | None = None
    """Decode ends with UNAVAILABLE after this many tokens."""
    prefill_delay_s: float = 0.0
    token_delay_s: float = 0.0
    hold_prefill: asyncio.Event | None = None
    """If set, prefill waits for it."""
    wrong_layouts: frozenset[str] = frozenset()
    """Of decode: there log-probabilities are too low, and from the fourth token on all tokens are others."""
    wrong_answers: int = 0
    """So many answers are like that in any layout."""


class FakeBackend:
    """A prefill and a decode group in this event loop, each on its own loopback port."""

    def __init__(self, script: Script, *, vocab: int) -> None:
        self.script = script
        self.vocab = vocab
        self.faults = Faults()
        self.counts = CallCounts()
        self.prefill = FakeGroup(phase="prefill", group="prefill-0")
        self.decode = FakeGroup(phase="decode", group="decode-0", layout="DP")
        self.addresses: dict[str, str] = {}
        self.handoffs: dict[str, asyncio.Event] = {}
        self._servers: dict[str, grpc.aio.Server] = {}

    async def start(self) -> None:
        """Listen; `addresses` then has one entry a phase."""
        for group in (self.prefill, self.decode):
            server = grpc.aio.server()
            control_pb2_grpc.add_ControlServicer_to_server(FakeControl(group, self.counts), server)
            prefill_pb2_grpc.add_PrefillServicer_to_server(_FakePrefill(self), server)
            decode_pb2_grpc.add_DecodeServicer_to_server(_FakeDecode(self, group), server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            self._servers[group.phase] = server
            self.addresses[group.phase] = f"127.0.0.1:{port}"

    async def stop(self, phase: str | None = None) -> None:
        """Close one group's port, or both, cutting what runs."""
        for name in [phase] if phase is not None else list(self._servers):
            await self._servers.pop(name).stop(None)

    def logprobs(
        self, prompt: Sequence[int], position: int, token: int, count: int
    ) -> common_pb2.TokenLogprobs:
        """Made-up scores: the token itself first, then its neighbours in the vocabulary."""
        base = zlib.crc32(repr((list(prompt), position)).encode()) % 1000 / 1000
        top = [
            common_pb2.TopLogprob(token=(token + rank) % self.vocab, logprob=-base - rank)
            for rank in range(count)
        ]
        return common_pb2.TokenLogprobs(token=token, logprob=-base, top=top)


class _FakePrefill(prefill_pb2_grpc.PrefillServicer):
    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend

    async def Run(
        self, request: prefill_pb2.PrefillRequest, context: grpc.aio.ServicerContext
    ) -> prefill_pb2.PrefillResult:
        backend = self._backend
        backend.counts.prefill_calls += 1
        backend.counts.prefills_running += 1
        try:
            if backend.faults.prefill_error is not None:
                await abort(context, backend.faults.prefill_error)
            await asyncio.sleep(backend.faults.prefill_delay_s)
            if backend.faults.hold_prefill is not None:
                await backend.faults.hold_prefill.wait()
            if request.HasField("lease"):
                backend.handoffs[request.lease.lease].set()
        except asyncio.CancelledError:
            backend.counts.cancelled += 1
            raise
        finally:
            backend.counts.prefills_running -= 1
        return prefill_pb2.PrefillResult(prompt_logprobs=self._scores(request), prefill_s=0.001)

    def _scores(self, request: prefill_pb2.PrefillRequest) -> list[common_pb2.TokenLogprobs]:
        if not request.sampling.HasField("prompt_logprobs"):
            return []
        count = request.sampling.prompt_logprobs
        return [
            self._backend.logprobs(request.prompt, position, token, count)
            for position, token in enumerate(request.prompt)
            if position > 0
        ]


class _FakeDecode(decode_pb2_grpc.DecodeServicer):
    def __init__(self, backend: FakeBackend, group: FakeGroup) -> None:
        self._backend = backend
        self._group = group

    async def Generate(
        self, request: decode_pb2.DecodeRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[decode_pb2.DecodeEvent, None]:
        backend = self._backend
        backend.counts.decode_calls += 1
        backend.counts.requests.append(request)
        if backend.faults.decode_error is not None:
            await abort(context, backend.faults.decode_error)
        lease = f"lease-{backend.counts.decode_calls}"
        backend.handoffs[lease] = asyncio.Event()
        backend.counts.decodes_running += 1
        try:
            yield decode_pb2.DecodeEvent(
                lease=common_pb2.Lease(lease=lease, attempt=1, group=self._group.group)
            )
            await backend.handoffs[lease].wait()
            async for event in self._answer(request, context):
                yield event
        except asyncio.CancelledError:
            backend.counts.cancelled += 1
            raise
        finally:
            backend.counts.decodes_running -= 1
            del backend.handoffs[lease]

    def _wrong(self) -> bool:
        """Whether an answer that begins now is to be wrong."""
        faults = self._backend.faults
        if self._group.layout in faults.wrong_layouts:
            return True
        faults.wrong_answers -= (some := faults.wrong_answers > 0)
        return some

    async def _answer(
        self, request: decode_pb2.DecodeRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[decode_pb2.DecodeEvent, None]:
        backend, sampling = self._backend, request.sampling
        script = list(backend.script(request.prompt, sampling)[: sampling.max_tokens])
        wrong = self._wrong()
        if wrong:
            script[_RIGHT_TOKENS:] = [(token + 1) % backend.vocab for token in script[_RIGHT_TOKENS:]]
        for position, token in enumerate(script):
            if position == backend.faults.break_after:
                await abort(context, Unavailable("the decode group has died"))
            # Also without a delay: one token an event, as from a leader.
            await asyncio.sleep(backend.faults.token_delay_s)
            if token in sampling.stop_token_ids and position >= sampling.min_tokens:
                yield decode_pb2.DecodeEvent(
                    finished=decode_pb2.DecodeFinished(reason="stop", stop_token=token)
                )
                return
            scores: list[common_pb2.TokenLogprobs] = []
            if sampling.HasField("logprobs"):
                place = len(request.prompt) + position
                scores = [backend.logprobs(request.prompt, place, token, sampling.logprobs)]
                scores[0].logprob -= _WRONG_BY if wrong else 0.0
            yield decode_pb2.DecodeEvent(tokens=decode_pb2.DecodedTokens(tokens=[token], logprobs=scores))
        yield decode_pb2.DecodeEvent(finished=decode_pb2.DecodeFinished(reason="length"))
