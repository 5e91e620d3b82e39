"""Text from tokens: whole characters only, nothing lost, exact bytes."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.detokenize import Detokenizer
from services.router.tokenizer import Tokenizer
from tests.support.scripted_router import write_tokenizer


def in_pieces(raw: bytes, cuts: list[int]) -> list[bytes]:
    """`raw` cut at the given places."""
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return [raw[begin:end] for begin, end in pairwise(edges)]


def texts_of(pieces: list[bytes]) -> list[str]:
    state = Detokenizer(lambda token: pieces[token], lambda _: False)
    return [*(state.push(token) for token in range(len(pieces))), state.flush()]


@given(st.text(), st.lists(st.integers(0, 1000), max_size=12))
def test_any_cut_of_any_text_gives_the_text(text: str, cuts: list[int]) -> None:
    shown = texts_of(in_pieces(text.encode(), cuts))
    assert "".join(shown) == text
    assert shown[-1] == ""


@given(st.binary(max_size=40), st.lists(st.integers(0, 1000), max_size=12))
def test_any_cut_of_any_bytes_gives_one_text(raw: bytes, cuts: list[int]) -> None:
    assert "".join(texts_of(in_pieces(raw, cuts))) == raw.decode(errors="replace")


def test_emoji_appears_whole_with_its_last_byte() -> None:
    assert texts_of([b"a", b"\xf0", b"\x9f\x98", b"\x80", b"b"]) == ["a", "", "", "😀", "b", ""]


def test_cut_emoji_becomes_one_replacement_at_the_end() -> None:
    assert texts_of([b"a", b"\xf0\x9f", b"\x98"]) == ["a", "", "", "\ufffd"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tokenizer(tmp_path_factory.mktemp("model")))


@given(st.text(max_size=60))
def test_token_bytes_spell_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not any(tokenizer.is_special(token) for token in ids):
        assert b"".join(tokenizer.token_bytes(token) for token in ids).decode() == text


def test_special_tokens_add_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|user|>in<|end|>", add_special_tokens=True)
    state = Detokenizer(tokenizer.token_bytes, tokenizer.is_special)
    assert "".join(state.push(token) for token in ids) == "in"
    assert tokenizer.token_bytes(ids[-1]) == b"<|end|>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|bos|><|user|>in<|end|>"


def test_padding_ids_add_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b""


def test_byte_fallback_vocabulary(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Fast
    from tokenizers import decoders, models

    vocab = {"<unk>": 0, "\u2581the": 1, "<0xF0>": 2, "<0x9F>": 3, "<0x98>": 4, "<0x80>": 5, "x": 6}
    fast = Fast(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    fast.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    fast.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    state = Detokenizer(tokenizer.token_bytes, tokenizer.is_special)
    assert [state.push(token) for token in (1, 2, 3, 4, 5, 6)] == [" the", "", "", "", "😀", "x"]
    assert tokenizer.decode([1, 2, 3, 4, 5, 6], skip_special_tokens=False) == " the😀x"
