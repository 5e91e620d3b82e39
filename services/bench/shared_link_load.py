"""The clients of `splash bench shared-link`: streams in the background, and requests whose first text counts.

Invariant: every request ends, or is ended, before its block is left.
"""

import asyncio
import json
import random
import string
import time
from collections.abc import AsyncIterator, Callable
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


@dataclass(slots=True)
class Probes:
    """Requests that arrived at random moments: seconds to the first text of each."""

    ttft_s: list[float] = field(default_factory=list[float])
    failed: list[str] = field(default_factory=list[str])


class Load:
    """Requests to one gateway."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, *, model: str, settings: SharedLinkSettings
    ) -> None:
        self._client = client
        self._url = f"{url}/v1/completions"
        self._model = model
        self._settings = settings
        self._random = random.Random(settings.seed)

    async def one(self, *, prompt: int, max_tokens: int, on_text: Callable[[], None]) -> None:
        """One request; told of each piece of text."""
        async with self._client.stream("POST", self._url, json=self._body(prompt, max_tokens)) as response:
            if response.status_code != 200:
                raise httpx.HTTPStatusError(
                    (await response.aread()).decode(), request=response.request, response=response
                )
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if line.startswith("data: {") and json.loads(data)["choices"][0]["text"]:
                    on_text()

    @asynccontextmanager
    async def background(self) -> AsyncIterator[None]:
        """Streams that decode meanwhile; inside the block all of them have begun."""
        begun = [asyncio.Event() for _ in range(self._settings.background)]
        size = {"prompt": self._settings.history, "max_tokens": _LONG}
        tasks = [asyncio.create_task(self.one(**size, on_text=event.set)) for event in begun]
        try:
            await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), _TIMEOUT_S)
            yield
            for task in (task for task in tasks if task.done()):
                raise Unavailable(f"a background stream has ended early: {task.exception()}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def probe(self, probes: Probes) -> None:
        """One request of two tokens."""
        began = time.monotonic()
        first: list[float] = []
        try:
            prompt = self._settings.prompt
            await self.one(
                prompt=prompt, max_tokens=2, on_text=lambda: first.append(time.monotonic() - began)
            )
        except httpx.HTTPError as error:
            probes.failed.append(str(error))
        else:
            probes.ttft_s += first[:1]

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
