"""Turns the events of one sequence into text: tokens → characters → what stop strings leave.

Streamed and whole answers read the same pieces. Invariant: the pieces' texts concatenate to the answer,
exactly one piece (the last) has a finish reason, and there is one `TokenEntry` a generated token.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from services.router.detokenize import Detokenizer
from services.router.events import PromptScored, SequenceEvent, Tokens
from services.router.stops import StopMatcher
from services.router.tokenizer import Tokenizer
from splash_core.errors import Unavailable
from splash_core.scheduling.step import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    """One token as logprobs show it; `text_offset` counts characters of the answer before it."""

    token: int
    logprobs: TokenLogprobs | None
    text_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of one choice's answer."""

    index: int
    text: str = ""
    entries: tuple[TokenEntry, ...] = ()
    tokens: int = 0
    """Generated tokens that this piece accounts for."""
    prompt: tuple[TokenLogprobs, ...] | None = None
    """Set on the one piece that carries the prompt's scores, which comes first."""
    finish: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """What ends a sequence's text; stop tokens are the worker's, and are not among the tokens it sends."""

    stops: tuple[str, ...]
    min_tokens: int
    """Stop strings count only in text of later tokens."""


class SequenceText:
    """The text state of one choice."""

    def __init__(self, index: int, tokenizer: Tokenizer, rules: TextRules) -> None:
        self._index = index
        self._rules = rules
        self._detokenizer = Detokenizer(tokenizer.token_bytes, tokenizer.is_special)
        self._matcher = StopMatcher(rules.stops)
        self._num_tokens = 0
        self._num_chars = 0
        self._held: list[TokenEntry] = []
        self._held_tokens = 0

    def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Piece:
        """Add generated tokens; a piece with a finish reason means that a stop string was met."""
        shown: list[str] = []
        for position, token in enumerate(tokens):
            entry = TokenEntry(
                token=token,
                logprobs=logprobs[position] if logprobs else None,
                text_offset=self._num_chars,
            )
            self._held.append(entry)
            self._held_tokens += 1
            self._num_tokens += 1
            text = self._detokenizer.push(token)
            self._num_chars += len(text)
            if self._num_tokens < self._rules.min_tokens:
                shown.append(text)
                continue
            scan = self._matcher.push(text)
            shown.append(scan.text)
            if scan.matched is not None:
                return self._piece("".join(shown), finish="stop")
        return self._piece("".join(shown), finish=None)

    def end(self, reason: str) -> Piece:
        """The worker has ended the sequence: everything held comes out, unless a stop string claims it."""
        scan = self._matcher.push(self._detokenizer.flush())
        if scan.matched is not None:
            return self._piece(scan.text, finish="stop")
        return self._piece(scan.text + self._matcher.flush(), finish=reason)

    def _piece(self, text: str, *, finish: str | None) -> Piece:
        if not text and finish is None:
            return Piece(index=self._index)
        entries, tokens = tuple(self._held), self._held_tokens
        self._held, self._held_tokens = [], 0
        return Piece(index=self._index, text=text, entries=entries, tokens=tokens, finish=finish)


async def pieces(
    text: SequenceText, index: int, events: AsyncGenerator[SequenceEvent, None]
) -> AsyncGenerator[Piece, None]:
    """The pieces of one choice; a stop string ends the sequence at its worker at once."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, PromptScored):
                yield Piece(index=index, prompt=event.entries)
                continue
            piece = (
                text.push(event.tokens, event.logprobs)
                if isinstance(event, Tokens)
                else text.end(event.reason)
            )
            if piece.text or piece.finish is not None:
                yield piece
            if piece.finish is not None:
                return
    raise Unavailable("the sequence ended without a reason")
