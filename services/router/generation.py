"""One validated request from its jobs to its answer: all choices at once, whole or as chunks.

Invariant: both forms are made from the same pieces; when one choice fails, or the reader stops, all end.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from services.router.answers import AnswerChoice, Header, Usage
from services.router.dispatch import Dispatcher
from services.router.events import Finished, SequenceEvent, SequenceJob
from services.router.merge import merged
from services.router.metrics import Metrics
from services.router.sequence import Piece, SequenceText, pieces
from services.router.tokenizer import Tokenizer
from services.router.validate import Work


class Generator:
    """Runs requests on the dispatcher."""

    def __init__(
        self, dispatcher: Dispatcher, tokenizer: Tokenizer, metrics: Metrics, *, clock: Callable[[], float]
    ) -> None:
        self._dispatcher = dispatcher
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._clock = clock

    async def whole(self, work: Work, header: Header) -> dict[str, Any]:
        """The whole answer."""
        usage = Usage(prompt_tokens=work.prompt_tokens)
        choices = [AnswerChoice() for _ in work.jobs]
        async with aclosing(self._pieces(work)) as parts:
            async for piece in parts:
                choices[piece.index].add(piece)
                usage.completion_tokens += piece.tokens
        return work.format.whole(header, choices, usage)

    async def chunks(self, work: Work, header: Header) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as chunks; the first comes with the first token, so earlier failures have a status."""
        usage = Usage(prompt_tokens=work.prompt_tokens)
        pending: dict[str, Any] = {"usage": None} if work.include_usage else {}
        opened: set[int] = set()
        async with aclosing(self._pieces(work)) as parts:
            async for piece in parts:
                usage.completion_tokens += piece.tokens
                # A scored prompt opens its choice itself.
                if piece.index not in opened:
                    opened.add(piece.index)
                    for chunk in work.format.opening(header, piece.index):
                        yield chunk | pending
                for chunk in work.format.chunks(header, piece):
                    yield chunk | pending
        if work.include_usage:
            yield work.format.closing(header, usage)

    async def _pieces(self, work: Work) -> AsyncGenerator[Piece, None]:
        """The pieces of all choices as they come."""
        sources = [
            pieces(SequenceText(index, self._tokenizer, work.rules), index, self._events(job))
            for index, job in enumerate(work.jobs)
        ]
        began = self._clock()
        last: dict[int, float] = {}
        self._metrics.count("splash_prompt_tokens_total", work.prompt_tokens)
        async with aclosing(merged(sources)) as parts:
            async for piece in parts:
                self._observe(piece, began, last)
                yield piece

    def _observe(self, piece: Piece, began: float, last: dict[int, float]) -> None:
        now = self._clock()
        if not last:
            self._metrics.ttft.observe(now - began)
        if piece.tokens and piece.index in last:
            self._metrics.itl.observe((now - last[piece.index]) / piece.tokens)
        last[piece.index] = now
        self._metrics.count("splash_generated_tokens_total", piece.tokens)

    def _events(self, job: SequenceJob) -> AsyncGenerator[SequenceEvent, None]:
        if job.sampling.max_tokens == 0 and job.sampling.prompt_logprobs is None:
            return _nothing_to_do()
        return self._dispatcher.generate(job)


async def _nothing_to_do() -> AsyncGenerator[SequenceEvent, None]:
    """An echo without scores and without new tokens needs no worker."""
    yield Finished(reason="length")
