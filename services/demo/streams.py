"""Chat streams in threads, each token noted with its time, so that others can see who is alive.

Invariant: a stream's tokens are only appended, by its own thread; `done` is set last, also after an error.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import openai

PATIENCE_S = 300.0
"""No single request of the demo takes longer."""


class ChatStream:
    """One greedy chat completion, running in a thread from its creation."""

    def __init__(self, client: openai.OpenAI, *, model: str, prompt: str, max_tokens: int) -> None:
        self.tokens: list[bytes] = []
        self.error: Exception | None = None
        self.done = threading.Event()
        self._request: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": True,  # they carry each token's identity, which text alone may blur
        }
        self._client = client
        self._thread = threading.Thread(target=self._run, name="demo-stream", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._client.chat.completions.create(**self._request, stream=True) as events:
                for event in events:
                    for choice in event.choices:
                        entries = (choice.logprobs.content if choice.logprobs else None) or ()
                        self.tokens += [bytes(entry.bytes or entry.token.encode()) for entry in entries]
        except (openai.OpenAIError, OSError) as error:
            self.error = error
        finally:
            self.done.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end.

        Raises:
            TimeoutError: it does not end in time.
            Exception: the error that ended the stream.
        """
        if not self.done.wait(timeout_s):
            raise TimeoutError(f"a stream of the demo did not end within {timeout_s:g} s")
        if self.error is not None:
            raise self.error


class Wave:
    """One stream for each prompt, all at once."""

    def __init__(self, client: openai.OpenAI, *, model: str, prompts: Sequence[str], max_tokens: int) -> None:
        self.streams = tuple(
            ChatStream(client, model=model, prompt=prompt, max_tokens=max_tokens) for prompt in prompts
        )

    def unstarted(self) -> frozenset[int]:
        """Streams without a token: waiting, or in prefill."""
        return frozenset(
            index
            for index, stream in enumerate(self.streams)
            if not stream.tokens and not stream.done.is_set()
        )

    def decoding(self) -> frozenset[int]:
        """Streams with a token that have not ended: in decode."""
        return frozenset(
            index for index, stream in enumerate(self.streams) if stream.tokens and not stream.done.is_set()
        )

    def ended(self) -> bool:
        """True when no stream runs any more."""
        return all(stream.done.is_set() for stream in self.streams)

    def progress(self) -> int:
        """Tokens of all streams together."""
        return sum(len(stream.tokens) for stream in self.streams)

    def finish(self) -> tuple[tuple[bytes, ...], ...]:
        """Wait for all streams; each one's tokens."""
        end = time.monotonic() + PATIENCE_S
        for stream in self.streams:
            stream.join(max(0.0, end - time.monotonic()))
        return tuple(tuple(stream.tokens) for stream in self.streams)


def wait_until(holds: Callable[[], bool], *, what: str, poll_s: float = 0.005) -> None:
    """Poll until something holds.

    Raises:
        TimeoutError: it does not within `PATIENCE_S`.
    """
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(poll_s)
