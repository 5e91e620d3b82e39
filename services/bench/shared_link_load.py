"""The clients of `splash bench shared-link`: streams in the background, and requests whose first text counts.

Invariant: every request ends, or is ended, before its block is left.
"""

import asyncio
import json
import random
import string
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from services.bench.shared_link_settings import SharedLinkSettings
from splash_core.errors import Unavailable

_LETTER = ord("a")
_TIMEOUT_S = 120.0
_LONG = 4000
"""Output tokens of streams that outlast every window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One request that arrived at a random moment."""

    name: str
    """Its id at the gateway."""
    began: float
    """Monotonic seconds."""
    ttft_s: float
    """From its beginning to its first text."""


@dataclass(slots=True)
class Probes:
    """Those of a window."""

    answered: list[Probe] = field(default_factory=list[Probe])
    failed: list[str] = field(default_factory=list[str])


class _Stream:
    """When one stream's texts came."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gaps_s: list[float] = []
        self._last: float | None = None

    def text(self) -> None:
        """A piece of text has come."""
        now = time.monotonic()
        if self._last is not None:
            self.gaps_s.append(now - self._last)
        self._last = now
        self.begun.set()


class Streams:
    """The background streams of a window."""

    def __init__(self, streams: Sequence[_Stream]) -> None:
        self._streams = streams

    def take_gaps_s(self) -> list[float]:
        """Seconds between two texts of a stream, of all streams, since this was asked last."""
        gaps = [gap for stream in self._streams for gap in stream.gaps_s]
        for stream in self._streams:
            stream.gaps_s.clear()
        return gaps


class GatewayLoad:
    """Requests to one gateway."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, *, model: str, settings: SharedLinkSettings
    ) -> None:
        self._client = client
        self._url = f"{url}/v1/completions"
        self._model = model
        self._settings = settings
        self._random = random.Random(settings.seed)

    async def one(self, *, prompt: int, max_tokens: int, on_text: Callable[[], None]) -> str:
        """One request; told of each piece of text. Returns its id."""
        async with self._client.stream("POST", self._url, json=self._body(prompt, max_tokens)) as response:
            if response.status_code != 200:
                raise httpx.HTTPStatusError(
                    (await response.aread()).decode(), request=response.request, response=response
                )
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if line.startswith("data: {") and json.loads(data)["choices"][0]["text"]:
                    on_text()
            return str(response.headers["x-request-id"])

    @asynccontextmanager
    async def background(self) -> AsyncIterator["Streams"]:
        """Streams that decode meanwhile; inside the block all of them have begun."""
        streams = [_Stream() for _ in range(self._settings.background)]
        size = {"prompt": self._settings.history, "max_tokens": _LONG}
        tasks = [asyncio.create_task(self.one(**size, on_text=stream.text)) for stream in streams]
        try:
            await asyncio.wait_for(asyncio.gather(*(stream.begun.wait() for stream in streams)), _TIMEOUT_S)
            yield Streams(streams)
            for task in (task for task in tasks if task.done()):
                raise Unavailable(f"a background stream has ended early: {task.exception()}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def probe(self, probes: Probes) -> None:
        """One request of two tokens."""
        began = time.monotonic()
        texts: list[float] = []
        try:
            prompt = self._settings.prompt
            name = await self.one(
                prompt=prompt, max_tokens=2, on_text=lambda: texts.append(time.monotonic() - began)
            )
        except httpx.HTTPError as error:
            probes.failed.append(str(error))
        else:
            probes.answered += [Probe(name=name, began=began, ttft_s=ttft_s) for ttft_s in texts[:1]]

    async def probes(self) -> Probes:
        """Requests at exponentially distributed intervals for a window; returns when all have ended."""
        probes, tasks = Probes(), list[asyncio.Task[None]]()
        end = time.monotonic() + self._settings.window_s
        while (pause := self._random.expovariate(self._settings.rate)) < end - time.monotonic():
            await asyncio.sleep(pause)
            tasks.append(asyncio.create_task(self.probe(probes)))
        await asyncio.gather(*tasks)
        return probes

    async def burst(self, count: int = 4) -> Probes:
        """So many requests at once."""
        probes = Probes()
        await asyncio.gather(*(self.probe(probes) for _ in range(count)))
        return probes

    def _body(self, prompt: int, max_tokens: int) -> dict[str, Any]:
        text = "".join(self._random.choices(string.ascii_letters, k=prompt - 1))
        # One letter again and again: every token is text, and no stream ends before it should.
        bias = {str(_LETTER): 100.0}
        return {
            "model": self._model,
            "prompt": text,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "logit_bias": bias,
            "stream": True,
        }


async def until_quiet(read: Callable[[], tuple[int, int]], *, idle_bps: float, seconds: float = 1.0) -> None:
    """Wait until a link carries less than `idle_bps` bytes per second each way."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S):
            before = read()
            while True:
                await asyncio.sleep(seconds)
                now = read()
                if max(b - a for a, b in zip(before, now, strict=True)) < idle_bps * seconds:
                    return
                before = now
