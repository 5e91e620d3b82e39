"""What a client is told: messages name what is served instead, and numbers are those of the documentation."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.openai_conformance import LONE, error_of
from tests.support.scripted_router import RunningRouter, running_router, write_tokenizer

MAX_MODEL_LEN = 1024


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRouter]:
    with running_router(write_tokenizer(tmp_path_factory.mktemp("model"))) as running:
        while httpx.get(f"{running.url}/ready").status_code != 200:
            pass
        yield running


def ask(router: RunningRouter, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{router.url}/v1/{path}", json={"model": "test-model", **fields}, timeout=30)


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            "messages[0].content[0].type",
            "only parts of type 'text' are served",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "input_audio"}]},
            "messages[0].content[1].type",
            "only parts of type 'text' are served",
        ),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "messages[0].role", "tools are not served"),
        ({"role": "function", "content": "x", "name": "f"}, "messages[0].role", "tools are not served"),
        (
            {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]},
            "messages[0].tool_calls",
            "not supported by this server",
        ),
        ({"role": "wizard", "content": "x"}, "messages[0].role", "'assistant'"),
        ({"role": "user", "content": "x", "zz": 1}, "messages[0].zz", "Unrecognized"),
    ],
)
def test_what_is_not_served_inside_messages_is_named(
    router: RunningRouter, message: dict[str, Any], param: str, words: str
) -> None:
    error = error_of(ask(router, "chat/completions", messages=[message]), 400)
    assert error["param"] == param
    assert words in error["message"]


def test_half_a_surrogate_pair_is_told_from_broken_json(router: RunningRouter) -> None:
    answer = httpx.post(f"{router.url}/v1/completions", content=LONE)
    message = error_of(answer, 400)["message"]
    assert "surrogate" in message
    assert "not valid JSON" not in message


def test_a_wrong_method_has_a_code_of_its_own(router: RunningRouter) -> None:
    answer = httpx.get(f"{router.url}/v1/completions")
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert error_of(httpx.get(f"{router.url}/v1/nothing"), 404)["code"] == "unknown_url"


def test_the_context_error_tells_what_was_asked_for(router: RunningRouter) -> None:
    prompt = [5] * MAX_MODEL_LEN
    whole = error_of(ask(router, "completions", prompt=prompt, max_tokens=7), 400)["message"]
    assert "maximum context length is 1024 tokens. However, you requested 1031 tokens" in whole
    assert "(1024 in the prompt, 7 in the completion)" in whole
    # Without max_tokens what is left of the context would do, if anything is.
    open_ended = error_of(ask(router, "completions", prompt=prompt), 400)["message"]
    assert (
        "you requested at least 1025 tokens (1024 in the prompt, at least 1 in the completion)" in open_ended
    )
    answer = ask(router, "completions", prompt=prompt[:-3], ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 3
