"""One request of the matrix, with the router's part played step by step."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import grpc.aio

from splash_core.pb import (
    common_pb2,
    control_pb2_grpc,
    decode_pb2,
    decode_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)
from splash_core.rpc.channels import open_channel
from tests.support.fake_groups import greedy

PROMPT_TOKENS = 64
NUM_PROMPTS = 4


def prompt(index: int, length: int = PROMPT_TOKENS) -> list[int]:
    """One of the prompts whose tokens are known."""
    return [(13 * index + 5 * position) % 300 for position in range(length)]


def sampling(index: int, tokens: int) -> common_pb2.Sampling:
    """Greedy for some prompts, seeded for others."""
    return greedy(tokens) if index % 2 else greedy(tokens, temperature=0.9, seed=index + 1)


class Stubs:
    """A group as its callers see it."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self.prefill = prefill_pb2_grpc.PrefillStub(self._channel)
        self.decode = decode_pb2_grpc.DecodeStub(self._channel)
        self.control = control_pb2_grpc.ControlStub(self._channel)

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close(None)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is asked for."""

    name: str
    index: int = 0
    tokens: int = 4
    length: int = PROMPT_TOKENS


class Request:
    """From the reservation to the last token; each step is taken when the play wants it."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.tokens: list[int] = []
        self.finish = ""
        self.lease = common_pb2.Lease()
        self._decode: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._run: asyncio.Task[prefill_pb2.PrefillResult] | None = None

    def ask(self, decode: Stubs) -> None:
        """Ask for pages."""
        self._decode = decode.decode.Generate(
            decode_pb2.DecodeRequest(
                request_id=self.wanted.name, prompt=self._prompt, sampling=self._sampling
            )
        )

    async def reserve(self, decode: Stubs) -> "Request":
        """Ask for pages, and wait for them."""
        self.ask(decode)
        await self.leased()
        return self

    async def leased(self) -> None:
        """Wait for the pages that were asked for."""
        self.lease = (await self._decode.read()).lease
        self._reading = asyncio.create_task(self._read())

    def prefill(self, prefill: Stubs) -> None:
        """Have the prompt computed and handed over."""
        request = prefill_pb2.PrefillRequest(
            request_id=self.wanted.name, prompt=self._prompt, sampling=self._sampling, lease=self.lease
        )
        self._run = asyncio.create_task(_awaited(prefill.prefill.Run(request)))

    @property
    def prefilled(self) -> bool:
        """True once prefill's call is over, one way or the other."""
        return self._run is not None and self._run.done()

    async def prefill_failure(self) -> str:
        """Wait until prefill's call has ended; why it failed, empty if it did not."""
        assert self._run is not None
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._run
            return ""
        error = self._run.exception()
        assert isinstance(error, grpc.aio.AioRpcError)
        return error.details() or str(error.code())

    async def decode_failure(self) -> str:
        """Wait until decode's call has ended; why it failed, empty if it did not."""
        assert self._reading is not None
        with contextlib.suppress(grpc.aio.AioRpcError):
            await asyncio.shield(self._reading)
            return ""
        error = self._reading.exception()
        assert isinstance(error, grpc.aio.AioRpcError)
        return error.details() or str(error.code())

    async def whole(self) -> list[int]:
        """All tokens; raises what failed first."""
        assert self._reading is not None
        assert self._run is not None
        done, _ = await asyncio.wait({self._reading, self._run}, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return self.tokens

    async def leave(self) -> None:
        """The client has gone: both calls are cancelled."""
        if self._decode is not None:
            self._decode.cancel()
        tasks: list[asyncio.Task[Any]] = [task for task in (self._run, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _prompt(self) -> list[int]:
        return prompt(self.wanted.index, self.wanted.length)

    @property
    def _sampling(self) -> common_pb2.Sampling:
        return sampling(self.wanted.index, self.wanted.tokens)

    async def _read(self) -> None:
        while True:
            event = await self._decode.read()
            self.tokens.extend(event.tokens.tokens)
            if event.WhichOneof("event") == "finished":
                self.finish = event.finished.reason
                return


async def _awaited(call: grpc.aio.UnaryUnaryCall) -> prefill_pb2.PrefillResult:
    try:
        return await call
    finally:
        call.cancel()
