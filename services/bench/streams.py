"""Requests that benchmarks send to a running stack, all at one moment, and when each of their tokens came.

Invariant: a stream's tokens and times are only appended, by its own thread.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import openai

from services.bench.workload import HIGHEST_ID, LOWEST_ID

_PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request as it is sent."""

    tokens: tuple[int, ...]
    output: int
    """Tokens that it generates: all that it may."""


@dataclass(slots=True)
class Streamed:
    """What came of one request."""

    tokens: list[str] = field(default_factory=list[str])
    times: list[float] = field(default_factory=list[float])
    """Of each token, seconds since all requests began."""

    @property
    def gaps_s(self) -> list[float]:
        """Between two tokens."""
        return [later - before for before, later in zip(self.times[:-1], self.times[1:], strict=True)]


def random_tokens(dice: np.random.Generator, length: int, *, vocab: int) -> tuple[int, ...]:
    """Ordinary tokens of a vocabulary, large or tiny."""
    low, high = min(LOWEST_ID, vocab // 4), min(HIGHEST_ID, vocab * 3 // 4)
    return tuple(dice.integers(low, high, length).tolist())


def stream_all(client: openai.OpenAI, prompts: Sequence[Prompt], *, model: str) -> list[Streamed]:
    """Send all requests at one moment and read them to their ends.

    Raises:
        openai.OpenAIError: a request failed; the first one that did.
    """
    streams = [Streamed() for _ in prompts]
    start = _Start(len(prompts))

    def read(prompt: Prompt, stream: Streamed) -> None:
        began = start.wait()
        with client.completions.create(
            model=model,
            prompt=list(prompt.tokens),
            max_tokens=prompt.output,
            temperature=0,
            logprobs=0,  # they carry each token's identity, which text alone may blur
            stream=True,
            extra_body={"ignore_eos": True},
            timeout=_PATIENCE_S,
        ) as events:
            for event in events:
                now = time.perf_counter() - began
                for choice in event.choices:
                    tokens = (choice.logprobs.tokens if choice.logprobs else None) or ()
                    stream.tokens += tokens
                    stream.times += [now] * len(tokens)

    with ThreadPoolExecutor(len(prompts), thread_name_prefix="stream") as threads:
        futures = [threads.submit(read, *pair) for pair in zip(prompts, streams, strict=True)]
        for future in futures:
            future.result()
    return streams


class _Start:
    """One moment for all threads."""

    def __init__(self, count: int) -> None:
        self._began = 0.0
        self._barrier = threading.Barrier(count, action=self._note)

    def wait(self) -> float:
        """Until all wait; when that was."""
        self._barrier.wait()
        return self._began

    def _note(self) -> None:
        self._began = time.perf_counter()
