"""Requests far beyond every limit: refused in words, quickly, and without holding up anybody else.

No time is asserted. What must not be done at all is made to fail instead: reading the whole text.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer as FastTokenizer

from services.router.errors import error_object
from services.router.tokenizer import TextTooLong, Tokenizer
from splash_core.errors import InvalidRequest
from tests.support.openai_conformance import error_of
from tests.support.scripted_router import RunningRouter, running_router, write_tokenizer

MAX_MODEL_LEN = 1024
LONGEST_TOKEN = 13
"""Characters of `<|assistant|>`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def router(folder: Path) -> Iterator[RunningRouter]:
    with running_router(folder, max_tokenized=3000) as running:
        with httpx.Client(timeout=30) as http:
            while http.get(f"{running.url}/ready").status_code != 200:
                pass
        yield running


def post(router: RunningRouter, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(router.url + path, json={"model": "test-model", **body}, timeout=30)


LONG = "x" * (MAX_MODEL_LEN * LONGEST_TOKEN + 1)
IDS = [5] * 100_000


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["short", LONG]}, "prompt"),
        ("/v1/completions", {"prompt": IDS}, "prompt"),
        ("/v1/completions", {"prompt": [[1], IDS]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/tokenize", {"prompt": LONG * 3}, "prompt"),
        ("/tokenize", {"prompt": "x" * 3000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 3000}]}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG * 3}]}, "messages"),
    ],
)
def test_what_cannot_fit_is_refused_by_its_length(
    router: RunningRouter, path: str, body: dict[str, Any], param: str
) -> None:
    error = error_of(post(router, path, body), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [*IDS, "x"]},
        {"prompt": [[*IDS, 1.5]]},
        {"prompt": [1, [2]]},
        {"prompt": [True]},
        {"prompt": IDS * 0 + ["a", 1]},
    ],
)
def test_a_mixed_prompt_is_one_short_error(router: RunningRouter, body: dict[str, Any]) -> None:
    error = error_of(post(router, "/v1/completions", body), 400)
    assert error["param"] == "prompt"
    assert "list of token ids" in error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stop": IDS}, "stop"),
        ({"stop_token_ids": ["x"] * 100_000}, "stop_token_ids"),
        ({"logit_bias": dict.fromkeys(map(str, range(100_001)), 0.0)}, "logit_bias"),
        ({"messages": [{"role": "wizard", "content": "x"}] * 50_000}, "messages"),
        ({f"key{index}": 1 for index in range(50_000)}, "key0"),
    ],
)
def test_long_lists_of_mistakes_are_read_up_to_the_first(
    router: RunningRouter, body: dict[str, Any], param: str
) -> None:
    error = error_of(
        post(router, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **body}), 400
    )
    assert error["param"].startswith(param)
    assert len(error["message"]) < 300


def test_detokenize_has_a_limit(router: RunningRouter) -> None:
    assert post(router, "/detokenize", {"tokens": [70] * 3000}).status_code == 200
    error = error_of(post(router, "/detokenize", {"tokens": [70] * 3001}), 400)
    assert "at most 3000" in error["message"]


def test_answers_to_mistakes_are_short(router: RunningRouter) -> None:
    for body in ({"k" * 500_000: 1}, {"temperature": "t" * 500_000}, {"model": "m" * 500_000}):
        answer = post(router, "/v1/completions", {"prompt": "x", **body})
        assert answer.is_client_error
        assert len(answer.content) < 2000, answer.text[:200]


def test_a_long_message_keeps_its_end_where_the_remedy_stands() -> None:
    shown = error_object(InvalidRequest(f"bad {'x' * 5000}; use less", param="p" * 5000))["error"]
    assert shown["message"].startswith("bad xxx")
    assert shown["message"].endswith("; use less")
    assert len(shown["message"]) <= 1000
    assert len(shown["param"]) <= 200


class Reads:
    """A library tokenizer that remembers how many characters it was given."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self.lengths: list[int] = []

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.lengths += map(len, texts)
        return self._fast.encode_batch_fast(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fast, name)


def _reader(folder: Path) -> tuple[Tokenizer, Reads]:
    reads = Reads(FastTokenizer.from_file(str(folder / "tokenizer.json")))
    return Tokenizer(reads, template=None, bos_id=None, vocab_size=300), reads  # type: ignore[arg-type]


def test_a_text_beyond_the_longest_tokens_is_not_read(folder: Path) -> None:
    tokenizer, reads = _reader(folder)
    with pytest.raises(TextTooLong) as raised:
        tokenizer.encode_within("x" * 131, add_special_tokens=False, max_tokens=10)
    assert (raised.value.at_least, reads.lengths) == (11, [])
    assert len(tokenizer.encode_within("<|assistant|>" * 10, add_special_tokens=False, max_tokens=10)) == 10


@pytest.mark.parametrize("normalizer", [{"type": "NFKC"}, {"type": "Strip", "strip_left": True}])
def test_where_a_tokenizer_may_drop_characters_only_its_own_count_refuses(
    folder: Path, tmp_path: Path, normalizer: dict[str, Any]
) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    document["normalizer"] = {"strip_right": True} | normalizer if "strip_left" in normalizer else normalizer
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer, reads = _reader(tmp_path)
    with pytest.raises(TextTooLong):
        tokenizer.encode_within("x" * 10_000, add_special_tokens=False, max_tokens=10)
    assert reads.lengths == [80]
    if "strip_left" in normalizer:
        padded = f"x{' ' * 10_000}"
        assert len(tokenizer.encode_within(padded, add_special_tokens=False, max_tokens=10)) == 1
