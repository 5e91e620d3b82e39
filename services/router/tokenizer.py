"""Text to token ids and back, from the files of a Hugging Face checkpoint, without transformers.

Legend: a token's *bytes* are exactly what it adds to the text; a character may be split over tokens.
Invariant: for text without special tokens, the concatenated `token_bytes` of its ids are the text in UTF-8.
Long texts are read by the library's batch calls: only those let the event loop run meanwhile.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from services.router.chat_template import ChatTemplate
from splash_core.errors import ConfigError
from splash_core.spec.fields import read_json

_HEAD_CHARS = 8
"""Of a text longer than twice this many characters a token, the first part alone is tried first."""
_DOUBT = 1.25
"""Where the first part is cut, its tokens may differ from those of the whole; never by this factor."""


class TextTooLong(Exception):
    """A text certainly has more tokens than its reader allows."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"the text has {at_least} tokens or more")
        self.at_least = at_least


class Tokenizer:
    """The tokenizer of one checkpoint."""

    def __init__(
        self, fast: FastTokenizer, *, template: ChatTemplate | None, bos_id: int | None, vocab_size: int
    ) -> None:
        self._fast = fast
        self._bos_id = bos_id
        self.template = template
        self.vocab_size = vocab_size
        """Ids below this are valid in prompts, stop ids and logit_bias (the model's vocabulary)."""
        added = fast.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}
        document = json.loads(fast.to_str())
        self._decoders = _types(document.get("decoder"), "decoders")
        longest = max(map(len, fast.get_vocab()), default=1)
        self._longest_token = longest if _keeps_all(document, self._decoders) else None
        """Characters that a token stands for at most; None where the tokenizer may drop some."""

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read tokenizer.json, tokenizer_config.json, chat_template.jinja and config.json of a checkpoint."""
        path = tokenizer_file(folder)
        try:
            fast = FastTokenizer.from_file(str(path))
        except Exception as error:
            # The library raises nothing more special.
            raise ConfigError(f"{path} cannot be read: {error}") from error
        fast.no_padding()
        fast.no_truncation()
        settings = _read_json(folder / "tokenizer_config.json")
        bos = _token_content(settings.get("bos_token"))
        vocab = int(_read_json(folder / "config.json").get("vocab_size") or fast.get_vocab_size())
        return cls(
            fast,
            template=ChatTemplate.load(folder, settings),
            bos_id=fast.token_to_id(bos) if bos is not None and settings.get("add_bos_token") else None,
            vocab_size=vocab,
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; with `add_special_tokens`, the model's BOS as its tokenizer would add it."""
        ids = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        if add_special_tokens and self._bos_id is not None and ids[:1] != [self._bos_id]:
            return [self._bos_id, *ids]
        return ids

    def encode_within(self, text: str, *, add_special_tokens: bool, max_tokens: int) -> list[int]:
        """As `encode`, without spending time on what is far too long.

        Raises:
            TextTooLong: the text has certainly more than `max_tokens`; up to them it is never raised.
        """
        floor = 0 if self._longest_token is None else -(-len(text) // self._longest_token)
        head = _HEAD_CHARS * max_tokens
        if floor <= max_tokens and len(text) > 2 * head:
            seen = len(self.encode(text[:head], add_special_tokens=False))
            floor = seen if seen > _DOUBT * max_tokens + 1 else floor
        if floor > max_tokens:
            raise TextTooLong(floor)
        return self.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of a whole sequence."""
        return self._fast.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0]

    def is_special(self, token: int) -> bool:
        """True for control tokens, which add nothing to the text."""
        return token in self._special

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of one token; empty for an id that the vocabulary pads with."""
        added = self._added.get(token)
        if added is not None:
            return added
        piece = self._fast.id_to_token(token)
        if piece is None:
            return b""
        if "ByteLevel" in self._decoders:
            return b"".join(_BYTE_OF.get(char) or char.encode() for char in piece)
        if "ByteFallback" in self._decoders and len(piece) == 6 and piece.startswith("<0x"):
            return bytes.fromhex(piece[3:5])
        return piece.replace("\u2581", " ").encode()


def tokenizer_file(folder: Path) -> Path:
    """The tokenizer of a checkpoint.

    Raises:
        ConfigError: there is none.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{path} is missing; convert the checkpoint's tokenizer to tokenizer.json")
    return path


def read_eos_ids(folder: Path) -> tuple[int, ...]:
    """The token ids that end a sequence: generation_config.json's, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        eos = _read_json(folder / name).get("eos_token_id")
        if eos is not None:
            return tuple(int(token) for token in (eos if isinstance(eos, list) else [eos]))
    return ()


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _token_content(token: object) -> str | None:
    """A special token as tokenizer_config.json writes it: a string, or an object with its content."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _types(component: object, children: str) -> frozenset[str]:
    """All kinds in a (possibly nested) component of a tokenizer.json."""
    if not isinstance(component, Mapping):
        return frozenset()
    nested = (_types(child, children) for child in component.get(children) or ())
    return frozenset({str(component.get("type"))}).union(*nested)


def _keeps_all(document: Mapping[str, Any], decoders: frozenset[str]) -> bool:
    """True when every character of a text is in some token: none is normalised away, dropped or unknown."""
    splitters = _types(document.get("pre_tokenizer"), "pretokenizers")
    return (
        _types(document.get("normalizer"), "normalizers") <= {"Sequence"}
        and splitters <= {"Sequence", "Split", "Digits", "ByteLevel"}
        and '"Removed"' not in json.dumps(document.get("pre_tokenizer"))
        and "ByteLevel" in decoders & splitters
        and not any(token["lstrip"] or token["rstrip"] for token in document.get("added_tokens") or ())
    )


def _byte_alphabet() -> dict[str, bytes]:
    """The printable stand-in character of each byte in byte-level vocabularies (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): bytes([byte]) for byte in printable}
    return table | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
