"""Log-probabilities as OpenAI shows them: one form for chat, an older one for completions.

Invariant: `bytes` are the exact bytes of a token, also where its text is only part of a character.
"""

from collections.abc import Sequence
from typing import Any

from services.router.sequence import TokenEntry
from services.router.tokenizer import Tokenizer
from splash_core.scheduling.step import TokenLogprobs

_FLOOR = -9999.0
"""JSON has no -inf: OpenAI writes this for a token without probability."""


def chat_logprobs(entries: Sequence[TokenEntry], tokenizer: Tokenizer, *, top: int) -> dict[str, Any]:
    """The `logprobs` object of a chat choice or chunk."""
    content: list[dict[str, Any]] = []
    for entry in entries:
        if entry.logprobs is None:
            continue
        shown = _chat_token(entry.token, entry.logprobs.logprob, tokenizer)
        shown["top_logprobs"] = [
            _chat_token(token, logprob, tokenizer) for token, logprob in entry.logprobs.top[:top]
        ]
        content.append(shown)
    return {"content": content, "refusal": None}


class LegacyLogprobs:
    """The four parallel lists of a completion's `logprobs`."""

    def __init__(self, tokenizer: Tokenizer, *, top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._lists: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }

    def add(self, token: int, logprobs: TokenLogprobs | None, *, text_offset: int) -> None:
        """Add one token; None for the first token of a prompt, which nothing predicts."""
        self._lists["tokens"].append(_legacy_text(token, self._tokenizer))
        self._lists["token_logprobs"].append(None if logprobs is None else _finite(logprobs.logprob))
        self._lists["top_logprobs"].append(None if logprobs is None else self._best(logprobs))
        self._lists["text_offset"].append(text_offset)

    def to_json(self) -> dict[str, Any]:
        """The lists, all of one length."""
        return self._lists

    def _best(self, logprobs: TokenLogprobs) -> dict[str, float]:
        """The most probable tokens, and the token itself when it is not among them."""
        best = {
            _legacy_text(token, self._tokenizer): _finite(logprob)
            for token, logprob in reversed(logprobs.top[: self._top])
        }
        ordered = dict(reversed(best.items()))
        ordered.setdefault(_legacy_text(logprobs.token, self._tokenizer), _finite(logprobs.logprob))
        return ordered


def _chat_token(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": _text(raw, escape_prefix=""), "logprob": _finite(logprob), "bytes": list(raw)}


def _legacy_text(token: int, tokenizer: Tokenizer) -> str:
    return _text(tokenizer.token_bytes(token), escape_prefix="bytes:")


def _text(raw: bytes, *, escape_prefix: str) -> str:
    """A token's text; part of a character is written as its escaped bytes, so that tokens stay distinct."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return escape_prefix + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    return max(logprob, _FLOOR)
