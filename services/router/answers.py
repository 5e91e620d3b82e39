"""The JSON bodies of chat and completion answers, whole and streamed.

Invariant: the choices' streamed texts and logprobs concatenate to the whole answer's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.router.detokenize import Detokenizer
from services.router.logprobs import LegacyLogprobs, chat_logprobs
from services.router.sequence import Piece, TokenEntry
from services.router.tokenizer import Tokenizer
from splash_core.scheduling.step import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What all parts of one answer repeat."""

    answer_id: str
    created: int
    model: str


@dataclass(slots=True, kw_only=True)
class Usage:
    """Tokens of a request: prompts counted once each, every generated token counted."""

    prompt_tokens: int
    completion_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(slots=True, kw_only=True)
class AnswerChoice:
    """A choice as it comes together."""

    text: list[str] = field(default_factory=list)
    entries: list[TokenEntry] = field(default_factory=list)
    prompt: tuple[TokenLogprobs, ...] | None = None
    finish: str | None = None

    def add(self, piece: Piece) -> None:
        """Add the next piece of this choice."""
        self.text.append(piece.text)
        self.entries.extend(piece.entries)
        self.prompt = piece.prompt if piece.prompt is not None else self.prompt
        self.finish = piece.finish


class Format(Protocol):
    """How one endpoint writes its answers."""

    def whole(self, header: Header, choices: Sequence[AnswerChoice], usage: Usage) -> dict[str, Any]:
        """The whole answer."""
        ...

    def opening(self, header: Header, index: int) -> list[dict[str, Any]]:
        """Chunks before a choice's first piece."""
        ...

    def chunks(self, header: Header, piece: Piece) -> list[dict[str, Any]]:
        """Chunks of one piece."""
        ...

    def closing(self, header: Header, usage: Usage) -> dict[str, Any]:
        """The chunk that carries the usage."""
        ...


class ChatFormat:
    """`/v1/chat/completions`."""

    def __init__(self, tokenizer: Tokenizer, *, logprobs: int | None) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs

    def whole(self, header: Header, choices: Sequence[AnswerChoice], usage: Usage) -> dict[str, Any]:
        """See `Format`."""
        listed = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
                "logprobs": self._shown(choice.entries),
                "finish_reason": choice.finish,
            }
            for index, choice in enumerate(choices)
        ]
        return _body(header, "chat.completion", listed) | {"usage": usage.to_json()}

    def opening(self, header: Header, index: int) -> list[dict[str, Any]]:
        """See `Format`."""
        return [self._chunk(header, index, {"role": "assistant", "content": ""})]

    def chunks(self, header: Header, piece: Piece) -> list[dict[str, Any]]:
        """See `Format`; the finish reason comes in a chunk of its own, as OpenAI sends it."""
        chunks: list[dict[str, Any]] = []
        if piece.text or (piece.entries and self._logprobs is not None):
            shown = self._shown(piece.entries)
            chunks.append(self._chunk(header, piece.index, {"content": piece.text}, logprobs=shown))
        if piece.finish is not None:
            chunks.append(self._chunk(header, piece.index, {}, finish=piece.finish))
        return chunks

    def closing(self, header: Header, usage: Usage) -> dict[str, Any]:
        """See `Format`."""
        return _body(header, "chat.completion.chunk", []) | {"usage": usage.to_json()}

    def _shown(self, entries: Sequence[TokenEntry]) -> dict[str, Any] | None:
        return None if self._logprobs is None else chat_logprobs(entries, self._tokenizer, top=self._logprobs)

    @staticmethod
    def _chunk(
        header: Header,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _body(header, "chat.completion.chunk", [choice])


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """A prompt that comes back before the completion."""

    text: str
    tokens: tuple[int, ...]


class CompletionFormat:
    """`/v1/completions`; `echoes` has one entry a choice, or none."""

    def __init__(self, tokenizer: Tokenizer, *, logprobs: int | None, echoes: Sequence[Echo]) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._echoes = echoes

    def whole(self, header: Header, choices: Sequence[AnswerChoice], usage: Usage) -> dict[str, Any]:
        """See `Format`."""
        listed = [
            self._choice(
                index,
                self._echo_text(index) + "".join(choice.text),
                self._shown(index, choice.entries, prompt=choice.prompt or (), with_prompt=True),
                choice.finish,
            )
            for index, choice in enumerate(choices)
        ]
        return _body(header, "text_completion", listed) | {"usage": usage.to_json()}

    def opening(self, header: Header, index: int) -> list[dict[str, Any]]:
        """See `Format`; with logprobs the echo waits for the piece that scores it."""
        if not self._echoes or self._logprobs is not None:
            return []
        return [_body(header, "text_completion", [self._choice(index, self._echo_text(index), None, None)])]

    def chunks(self, header: Header, piece: Piece) -> list[dict[str, Any]]:
        """See `Format`."""
        if piece.prompt is not None:
            shown = self._shown(piece.index, (), prompt=piece.prompt, with_prompt=True)
            choice = self._choice(piece.index, self._echo_text(piece.index), shown, None)
        else:
            shown = self._shown(piece.index, piece.entries, prompt=(), with_prompt=False)
            choice = self._choice(piece.index, piece.text, shown, piece.finish)
        return [_body(header, "text_completion", [choice])]

    def closing(self, header: Header, usage: Usage) -> dict[str, Any]:
        """See `Format`."""
        return _body(header, "text_completion", []) | {"usage": usage.to_json()}

    def _echo_text(self, index: int) -> str:
        return self._echoes[index].text if self._echoes else ""

    def _shown(
        self, index: int, entries: Sequence[TokenEntry], *, prompt: Sequence[TokenLogprobs], with_prompt: bool
    ) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        lists = LegacyLogprobs(self._tokenizer, top=self._logprobs)
        if self._echoes and with_prompt:
            self._add_prompt(lists, self._echoes[index], prompt)
        begin = len(self._echo_text(index))
        for entry in entries:
            lists.add(entry.token, entry.logprobs, text_offset=begin + entry.text_offset)
        return lists.to_json()

    def _add_prompt(self, lists: LegacyLogprobs, echo: Echo, scores: Sequence[TokenLogprobs]) -> None:
        """The first token has no score; a token's offset is where it begins in the echoed text."""
        decoder = Detokenizer(self._tokenizer.token_bytes, lambda _: False)
        offset = 0
        for position, token in enumerate(echo.tokens):
            lists.add(token, scores[position - 1] if position else None, text_offset=offset)
            text = decoder.push(token)
            # A BOS that the tokenizer added is not in the text.
            if not self._tokenizer.is_special(token) or echo.text.startswith(text, offset):
                offset = min(offset + len(text), len(echo.text))

    @staticmethod
    def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _body(header: Header, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": header.answer_id,
        "object": kind,
        "created": header.created,
        "model": header.model,
        "choices": choices,
        "system_fingerprint": None,
    }
