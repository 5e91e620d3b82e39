"""One try at one sequence on one pair of groups: lease, prefill, tokens.

Interval table of the calls: Decode.Generate is open from the start to the end; Prefill.Run from the lease
until the handoff is acknowledged. Invariant: when the reader stops or either call fails, both are cancelled
before control returns, so both groups free what the sequence holds.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from services.router.events import Finished, PromptScored, SequenceEvent, SequenceJob, Tokens
from services.router.worker import Worker
from splash_core.errors import GroupFailed, Overloaded, SplashError, Unavailable
from splash_core.pb import common_pb2, decode_pb2, prefill_pb2
from splash_core.rpc.codec import logprobs_from_pb, sampling_to_pb

_DecodeStream = AsyncGenerator[decode_pb2.DecodeEvent, None]
_LINGER_S = 1.0
"""How long a finished sequence waits for its two calls to end by themselves."""


class AttemptFailed(Exception):
    """A try failed with `cause`; `blamed` are the groups that failed it, where which of them is not known."""

    def __init__(self, cause: SplashError, *, blamed: frozenset[str]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.blamed = blamed


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHooks:
    """Called as the try proceeds."""

    leased: Callable[[], None]
    prefilled: Callable[[prefill_pb2.PrefillResult], None]
    first_token: Callable[[], None]
    decoded: Callable[[decode_pb2.DecodeFinished], None]


async def score(
    job: SequenceJob, prefill: Worker, hooks: AttemptHooks
) -> AsyncGenerator[SequenceEvent, None]:
    """Prompt log-probabilities alone (max_tokens 0): decode takes no part."""
    hooks.leased()
    yield _scored(await _run_prefill(prefill, job, hooks))
    yield Finished(reason="length")


async def attempt(
    job: SequenceJob, *, prefill: Worker, decode: Worker, hooks: AttemptHooks
) -> AsyncGenerator[SequenceEvent, None]:
    """Events of one sequence; raises `AttemptFailed`."""
    request = decode_pb2.DecodeRequest(
        request_id=job.request_id, prompt=job.prompt, sampling=sampling_to_pb(job.sampling)
    )
    async with aclosing(decode.generate(request)) as stream:
        lease = await _lease(stream, decode)
        hooks.leased()
        running = asyncio.create_task(_run_prefill(prefill, job, hooks, lease=lease, decode=decode))
        try:
            if job.sampling.prompt_logprobs is not None:
                # The prompt's entries come before the tokens, which meanwhile wait in the decode stream.
                yield _scored(await running)
            relayed = _relay(stream, decode, running, hooks)
            async with aclosing(relayed):
                async for event in relayed:
                    yield event
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _relay(
    stream: _DecodeStream,
    decode: Worker,
    running: "asyncio.Task[prefill_pb2.PrefillResult]",
    hooks: AttemptHooks,
) -> AsyncGenerator[SequenceEvent, None]:
    """Decode's events, while a prefill that fails before the first token ends the wait for it."""
    first = asyncio.create_task(_next(stream, decode))
    try:
        await asyncio.wait({first, running}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            await running
        event = await first
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    hooks.first_token()
    while event.WhichOneof("event") != "finished":
        if event.WhichOneof("event") == "tokens":
            yield _tokens(event.tokens)
        event = await _next(stream, decode)
    hooks.decoded(event.finished)
    # Decode has finished on an acknowledged handoff, so prefill's answer cannot change the result. Both calls
    # are let end by themselves: then both groups have let go before the client sees the end.
    ending = asyncio.create_task(_read_out(stream))
    try:
        await asyncio.wait({running, ending}, timeout=_LINGER_S)
    finally:
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
    yield Finished(reason=event.finished.reason)


async def _read_out(stream: _DecodeStream) -> None:
    async for _ in stream:
        pass


async def _lease(stream: _DecodeStream, decode: Worker) -> common_pb2.Lease:
    event = await _next(stream, decode)
    if event.WhichOneof("event") != "lease":
        cause = Unavailable(f"the decode group at {decode.address} began without a lease")
        raise AttemptFailed(cause, blamed=frozenset({decode.address}))
    return event.lease


async def _next(stream: _DecodeStream, decode: Worker) -> decode_pb2.DecodeEvent:
    try:
        return await anext(stream)
    except SplashError as error:
        raise AttemptFailed(error, blamed=frozenset({decode.address})) from error
    except StopAsyncIteration:
        cause = Unavailable(
            f"the decode group at {decode.address} ended its stream before the sequence was finished"
        )
        raise AttemptFailed(cause, blamed=frozenset({decode.address})) from None


async def _run_prefill(
    prefill: Worker,
    job: SequenceJob,
    hooks: AttemptHooks,
    *,
    lease: common_pb2.Lease | None = None,
    decode: Worker | None = None,
) -> prefill_pb2.PrefillResult:
    request = prefill_pb2.PrefillRequest(
        request_id=job.request_id, prompt=job.prompt, sampling=sampling_to_pb(job.sampling), lease=lease
    )
    try:
        result = await prefill.run_prefill(request)
    except SplashError as error:
        blamed = {prefill.address}
        if decode is not None and not isinstance(error, GroupFailed | Overloaded):
            # It may be about the group that prefill hands over to.
            blamed.add(decode.address)
        raise AttemptFailed(error, blamed=frozenset(blamed)) from error
    hooks.prefilled(result)
    return result


def _scored(result: prefill_pb2.PrefillResult) -> PromptScored:
    return PromptScored(entries=tuple(logprobs_from_pb(entry) for entry in result.prompt_logprobs))


def _tokens(message: decode_pb2.DecodedTokens) -> Tokens:
    return Tokens(
        tokens=tuple(message.tokens), logprobs=tuple(logprobs_from_pb(entry) for entry in message.logprobs)
    )
