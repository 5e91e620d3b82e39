"""What an OpenAI client may rely on: one suite, run on scripted groups and on real processes.

A module that runs it subclasses `OpenAiConformance` and provides a `server` fixture.
"""

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me of the sea"}], "max_tokens": 24}
ENDLESS = {"ignore_eos": True}
LONE = b'{"model": "x", "prompt": "half a pair \\ud83d"}'
CHAT_OPTIONAL = [
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "n",
    "seed",
    "stream",
    "stream_options",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "user",
    "metadata",
    "store",
    "service_tier",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "modalities",
    "audio",
    "prediction",
    "reasoning_effort",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "stop_token_ids",
    "min_tokens",
    "functions",
    "function_call",
    "web_search_options",
]
COMPLETION_OPTIONAL = [
    "max_tokens",
    "temperature",
    "top_p",
    "n",
    "seed",
    "stream",
    "stream_options",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "echo",
    "best_of",
    "suffix",
    "user",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "stop_token_ids",
    "min_tokens",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A deployment under test."""

    url: str
    admin_url: str
    model: str
    http: httpx.Client
    """Shared, as is the next: making a client takes longer than most answers."""
    client: openai.OpenAI

    def post(self, path: str, body: object) -> httpx.Response:
        return self.http.post(f"{self.url}{path}", json=body, timeout=60)

    def chat(self, **fields: Any) -> Any:
        return self._generate("/v1/chat/completions", {**CHAT, **fields})

    def complete(self, **fields: Any) -> Any:
        return self._generate("/v1/completions", {"prompt": "Once upon", "max_tokens": 16, **fields})

    def _generate(self, path: str, fields: Mapping[str, Any]) -> Any:
        answer = self.post(path, {"model": self.model, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def events(self, path: str, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All chunks of a stream, whose last event must be [DONE]."""
        body = {"model": self.model, "stream": True, **fields}
        with self.http.stream("POST", f"{self.url}{path}", json=body, timeout=60) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def chat_events(self, **fields: Any) -> list[dict[str, Any]]:
        return self.events("/v1/chat/completions", {**CHAT, **fields})

    def pages_held(self) -> int:
        return self.http.get(f"{self.admin_url}/admin/audit", timeout=10).json()["pages_held"]

    def wait_until_free(self, *, within_s: float) -> None:
        end = time.monotonic() + within_s
        while (held := self.pages_held()) != 0:
            assert time.monotonic() < end, f"{held} pages are still held"
            time.sleep(0.02)

    @property
    def max_model_len(self) -> int:
        return self.http.get(f"{self.url}/v1/models", timeout=10).json()["data"][0]["max_model_len"]


def openai_client(url: str) -> openai.OpenAI:
    """The Python client as a user makes it, without retries."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60)


def reassemble(chunks: list[dict[str, Any]]) -> list[str]:
    """Each choice's text from chat chunks."""
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return [texts[index] for index in sorted(texts)]


def finishes(chunks: list[dict[str, Any]]) -> list[str]:
    return [
        choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]
    ]


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


class OpenAiConformance:
    """The suite."""

    # ------------------------------------------------------------------------------ models, tokens

    def test_models(self, server: Server) -> None:
        listed = list(server.client.models.list())
        assert [model.id for model in listed] == [server.model]
        assert server.client.models.retrieve(server.model).id == server.model
        assert server.max_model_len > 0
        with pytest.raises(openai.NotFoundError):
            server.client.models.retrieve("no-such-model")

    @pytest.mark.parametrize("text", ["hello the sea", "naïve café ☃ 😀", "a\n\n  b\t", "<|end|> is literal"])
    def test_tokenize_round_trip(self, server: Server, text: str) -> None:
        answer = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()
        assert answer["count"] == len(answer["tokens"]) > 0
        assert answer["max_model_len"] == server.max_model_len
        assert server.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": text}

    def test_tokenize_chat_is_what_chat_counts(self, server: Server) -> None:
        answer = server.post("/tokenize", {"messages": CHAT["messages"]}).json()
        assert server.chat()["usage"]["prompt_tokens"] == answer["count"]

    # ---------------------------------------------------------------------------------- streaming

    @pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": 5}, {"seed": 6, "top_p": 0.7}])
    def test_stream_equals_whole(self, server: Server, fields: dict[str, Any]) -> None:
        whole = server.chat(**fields)
        chunks = server.chat_events(**fields)
        assert reassemble(chunks) == [whole["choices"][0]["message"]["content"]]
        assert finishes(chunks) == [whole["choices"][0]["finish_reason"]]
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)

    def test_completion_stream_equals_whole(self, server: Server) -> None:
        whole = server.complete(seed=4)
        fields = {"prompt": "Once upon", "max_tokens": 16, "seed": 4}
        chunks = server.events("/v1/completions", fields)
        text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
        assert text == whole["choices"][0]["text"]
        assert finishes(chunks) == [whole["choices"][0]["finish_reason"]]

    def test_python_client_streams(self, server: Server) -> None:
        whole = server.client.chat.completions.create(model=server.model, seed=1, **CHAT)
        stream = server.client.chat.completions.create(model=server.model, seed=1, stream=True, **CHAT)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content
        assert whole.usage is not None
        assert whole.usage.completion_tokens <= 24

    # -------------------------------------------------------------------------------------- usage

    @pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": None}, {}])
    def test_no_usage_unless_asked(self, server: Server, options: dict[str, Any] | None) -> None:
        chunks = server.chat_events(seed=1, stream_options=options)
        assert all(chunk["choices"] for chunk in chunks)
        assert all("usage" not in chunk for chunk in chunks)

    def test_usage_is_the_last_chunk(self, server: Server) -> None:
        whole = server.chat(seed=1)
        chunks = server.chat_events(seed=1, stream_options={"include_usage": True})
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        usage = whole["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    def test_max_tokens_is_exact(self, server: Server) -> None:
        for limits in ({"max_tokens": 7}, {"max_tokens": None, "max_completion_tokens": 7}):
            answer = server.chat(**limits, **ENDLESS)
            assert answer["usage"]["completion_tokens"] == 7
            assert answer["choices"][0]["finish_reason"] == "length"

    def test_max_tokens_null_is_the_rest_of_the_context(self, server: Server) -> None:
        prompt = server.post("/tokenize", {"messages": CHAT["messages"]}).json()["count"]
        room = server.max_model_len - prompt
        too_long = server.post(
            "/v1/chat/completions", {"model": server.model, **CHAT, "max_tokens": room + 1}
        )
        assert error_of(too_long, 400)["code"] == "context_length_exceeded"

    # --------------------------------------------------------------------------- several choices

    def test_choices_are_independent(self, server: Server) -> None:
        whole = server.chat(n=4, seed=10)
        texts = [choice["message"]["content"] for choice in whole["choices"]]
        assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
        assert len(set(texts)) == 4
        assert reassemble(server.chat_events(n=4, seed=10)) == texts
        # Choice i draws as a request of its own with seed + i.
        alone = [server.chat(seed=10 + index)["choices"][0]["message"]["content"] for index in range(4)]
        assert alone == texts

    def test_choices_count_once_in_the_prompt(self, server: Server) -> None:
        one, four = server.chat(seed=1)["usage"], server.chat(seed=1, n=4, **ENDLESS)["usage"]
        assert four["prompt_tokens"] == one["prompt_tokens"]
        assert four["completion_tokens"] == 4 * 24

    def test_batch_of_prompts(self, server: Server) -> None:
        prompts = ["Once upon", "a time", "there was"]
        batch = server.complete(prompt=prompts, seed=2, n=2)
        assert [choice["index"] for choice in batch["choices"]] == list(range(6))
        for place, prompt in enumerate(prompts):
            alone = server.complete(prompt=prompt, seed=2, n=2)
            for choice in range(2):
                assert batch["choices"][2 * place + choice]["text"] == alone["choices"][choice]["text"]

    # --------------------------------------------------------------------------------------- seeds

    def test_seed_reproduces(self, server: Server) -> None:
        texts = {
            seed: server.complete(seed=seed, **ENDLESS)["choices"][0]["text"] for seed in (1, 2, -3, 2**62)
        }
        assert len(set(texts.values())) == len(texts)
        for seed, text in texts.items():
            assert server.complete(seed=seed, **ENDLESS)["choices"][0]["text"] == text

    def test_no_seed_is_random(self, server: Server) -> None:
        texts = {server.complete(**ENDLESS)["choices"][0]["text"] for _ in range(3)}
        assert len(texts) > 1

    def test_greedy_needs_no_seed(self, server: Server) -> None:
        texts = {server.complete(temperature=0)["choices"][0]["text"] for _ in range(3)}
        assert len(texts) == 1

    def test_concurrent_requests_do_not_mix(self, server: Server) -> None:
        prompts = [f"story number {index}" for index in range(8)]
        alone = [server.complete(prompt=prompt, seed=3)["choices"][0]["text"] for prompt in prompts]
        with ThreadPoolExecutor(8) as pool:
            together = list(
                pool.map(lambda text: server.complete(prompt=text, seed=3)["choices"][0]["text"], prompts)
            )
        assert together == alone

    # ---------------------------------------------------------------------------------------- stop

    def test_stop_spanning_tokens(self, server: Server) -> None:
        free = server.chat(seed=8, **ENDLESS)
        text = free["choices"][0]["message"]["content"]
        stop = text[5:8]
        cut = text[: text.find(stop)]
        fields = {"seed": 8, "stop": stop, **ENDLESS}
        whole = server.chat(**fields)
        chunks = server.chat_events(**fields, stream_options={"include_usage": True})
        assert whole["choices"][0]["message"]["content"] == cut
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert reassemble(chunks) == [cut]
        assert finishes(chunks) == ["stop"]
        assert chunks[-1]["usage"] == whole["usage"]
        assert whole["usage"]["completion_tokens"] < free["usage"]["completion_tokens"]

    def test_stop_that_never_comes_hides_nothing(self, server: Server) -> None:
        text = server.chat(seed=8, **ENDLESS)["choices"][0]["message"]["content"]
        # Its beginning is the text's end, which is held back until the end is known.
        stop = [text[-3:] + "\x00", "\x01never"]
        fields = {"seed": 8, "stop": stop, **ENDLESS}
        assert server.chat(**fields)["choices"][0]["message"]["content"] == text
        assert reassemble(server.chat_events(**fields)) == [text]
        assert finishes(server.chat_events(**fields)) == ["length"]

    def test_stop_token_ids(self, server: Server) -> None:
        free = server.chat(temperature=0, logprobs=True, **ENDLESS)["choices"][0]["logprobs"]["content"]
        spelled = [bytes(entry["bytes"]) for entry in free]
        # The first place, from the third token on, of a letter that can be named by its text.
        place = next(index for index in range(2, 24) if spelled[index].isascii() and spelled[index])
        place = spelled.index(spelled[place])
        text = spelled[place].decode()
        [stop] = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
        cut = server.chat(temperature=0, stop_token_ids=[stop], **ENDLESS)
        assert cut["choices"][0]["finish_reason"] == "stop"
        assert cut["usage"]["completion_tokens"] == place
        before = b"".join(spelled[:place]).decode(errors="replace")
        assert cut["choices"][0]["message"]["content"] == before
        later = server.chat(temperature=0, stop_token_ids=[stop], min_tokens=20, **ENDLESS)
        assert later["usage"]["completion_tokens"] >= 20

    # ------------------------------------------------------------------------------------ logprobs

    @pytest.mark.parametrize("top", [0, 1, 5, 20])
    def test_chat_logprobs(self, server: Server, top: int) -> None:
        answer = server.chat(seed=9, logprobs=True, top_logprobs=top, **ENDLESS)
        content = answer["choices"][0]["logprobs"]["content"]
        assert len(content) == answer["usage"]["completion_tokens"] == 24
        assert all(len(entry["top_logprobs"]) == top for entry in content)
        assert all(entry["logprob"] <= 0 for entry in content)
        spelled = b"".join(bytes(entry["bytes"]) for entry in content)
        assert spelled.decode(errors="replace") == answer["choices"][0]["message"]["content"]
        for entry in content:
            best = [other["logprob"] for other in entry["top_logprobs"]]
            assert best == sorted(best, reverse=True)

    def test_streamed_logprobs_equal_whole(self, server: Server) -> None:
        fields = {"seed": 9, "logprobs": True, "top_logprobs": 3, "stop": "\x00never", **ENDLESS}
        whole = server.chat(**fields)["choices"][0]["logprobs"]["content"]
        streamed = [
            entry
            for chunk in server.chat_events(**fields)
            for choice in chunk["choices"]
            for entry in (choice["logprobs"] or {"content": []})["content"]
        ]
        assert [entry["bytes"] for entry in streamed] == [entry["bytes"] for entry in whole]
        for one, other in zip(streamed, whole, strict=True):
            assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)

    def test_logprobs_absent_unless_asked(self, server: Server) -> None:
        assert server.chat()["choices"][0]["logprobs"] is None
        assert server.complete()["choices"][0]["logprobs"] is None

    def test_completion_logprobs(self, server: Server) -> None:
        answer = server.complete(seed=2, logprobs=4, **ENDLESS)
        lists = answer["choices"][0]["logprobs"]
        assert {len(values) for values in lists.values()} == {16}
        assert lists["text_offset"][0] == 0
        assert lists["text_offset"] == sorted(lists["text_offset"])
        assert all(4 <= len(best) <= 5 for best in lists["top_logprobs"])
        for token, logprob, best in zip(
            lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True
        ):
            assert best[token] == pytest.approx(logprob)

    # ---------------------------------------------------------------------------------------- echo

    def test_echo_scores_the_prompt(self, server: Server) -> None:
        prompt = "Once upon the sea"
        answer = server.complete(prompt=prompt, echo=True, logprobs=2, seed=1, **ENDLESS)
        text, lists = answer["choices"][0]["text"], answer["choices"][0]["logprobs"]
        assert text.startswith(prompt)
        num_prompt = answer["usage"]["prompt_tokens"]
        assert {len(values) for values in lists.values()} == {num_prompt + 16}
        assert lists["token_logprobs"][0] is None
        assert lists["top_logprobs"][0] is None
        assert all(logprob <= 0 for logprob in lists["token_logprobs"][1:])
        assert lists["text_offset"][num_prompt] == len(prompt)
        plain = server.complete(prompt=prompt, seed=1, **ENDLESS)["choices"][0]["text"]
        assert text == prompt + plain

    def test_echo_alone(self, server: Server) -> None:
        prompt = "Once upon the sea"
        bare = server.complete(prompt=prompt, echo=True, max_tokens=0)
        assert bare["choices"][0]["text"] == prompt
        assert bare["usage"]["completion_tokens"] == 0
        scored = server.complete(prompt=prompt, echo=True, max_tokens=0, logprobs=1)
        lists = scored["choices"][0]["logprobs"]
        assert len(lists["tokens"]) == scored["usage"]["prompt_tokens"]
        assert None not in lists["token_logprobs"][1:]

    @pytest.mark.parametrize("logprobs", [None, 2])
    def test_echo_streams(self, server: Server, logprobs: int | None) -> None:
        fields = {"prompt": ["Once upon", "the sea"], "max_tokens": 5, "echo": True, "seed": 1}
        fields |= {"logprobs": logprobs, **ENDLESS}
        whole = server.complete(**fields)
        chunks = server.events("/v1/completions", fields)
        for index, choice in enumerate(whole["choices"]):
            mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
            assert "".join(part["text"] for part in mine) == choice["text"]
            if logprobs is not None:
                tokens = [token for part in mine for token in part["logprobs"]["tokens"]]
                offsets = [place for part in mine for place in part["logprobs"]["text_offset"]]
                assert tokens == choice["logprobs"]["tokens"]
                assert offsets == choice["logprobs"]["text_offset"]

    # ------------------------------------------------------------------------------------- prompts

    def test_token_ids_are_the_text(self, server: Server) -> None:
        ids = server.post("/tokenize", {"prompt": "Once upon"}).json()["tokens"]
        text = server.complete(prompt="Once upon", seed=1)
        for prompt in (ids, [ids]):
            assert server.complete(prompt=prompt, seed=1)["choices"][0]["text"] == text["choices"][0]["text"]
        echoed = server.complete(prompt=ids, seed=1, echo=True)["choices"][0]["text"]
        assert echoed.endswith("Once upon" + text["choices"][0]["text"])

    def test_escaped_pairs_are_text(self, server: Server) -> None:
        raw = b'{"prompt": "\\ud83d\\ude00 \\u00e9", "add_special_tokens": false}'
        tokens = server.http.post(f"{server.url}/tokenize", content=raw).json()["tokens"]
        assert server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": "😀 é"}

    def test_content_parts_and_roles(self, server: Server) -> None:
        parts = [{"type": "text", "text": "Tell me of the sea"}]
        spoken = [{"role": "user", "content": parts}]
        assert server.chat(seed=1, messages=spoken)["choices"] == server.chat(seed=1)["choices"]
        messages = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "hello", "name": "ann"},
            {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None},
            {"role": "user", "content": "the sea?"},
        ]
        assert server.chat(messages=messages)["usage"]["prompt_tokens"] > 0

    @pytest.mark.parametrize("field", CHAT_OPTIONAL)
    def test_chat_null_is_the_default(self, server: Server, field: str) -> None:
        fields: dict[str, Any] = {"max_tokens": 3, "seed": 1, field: None}
        if field == "max_tokens":
            fields["max_completion_tokens"] = 3
        if field == "stream":
            fields["stream"] = None
        assert server.chat(**fields)["choices"][0]["finish_reason"] in ("length", "stop")

    @pytest.mark.parametrize("field", COMPLETION_OPTIONAL)
    def test_completion_null_is_the_default(self, server: Server, field: str) -> None:
        with_null = server.complete(**{"max_tokens": 3, "temperature": 0, field: None})
        if field not in ("max_tokens", "temperature"):
            absent = server.complete(max_tokens=3, temperature=0)
            assert with_null["choices"] == absent["choices"]

    def test_harmless_fields_change_nothing(self, server: Server) -> None:
        extra = {"user": "ann", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "tools": []}
        extra |= {"response_format": {"type": "text"}, "tool_choice": "none"}
        assert server.chat(seed=1, **extra)["choices"] == server.chat(seed=1)["choices"]

    # -------------------------------------------------------------------------------------- errors

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"temperature": 2.5}, "temperature"),
            ({"temperature": "hot"}, "temperature"),
            ({"temperature": -0.1}, "temperature"),
            ({"top_p": 0}, "top_p"),
            ({"top_p": 1.5}, "top_p"),
            ({"top_k": -2}, "top_k"),
            ({"min_p": 1.5}, "min_p"),
            ({"presence_penalty": 3}, "presence_penalty"),
            ({"frequency_penalty": -3}, "frequency_penalty"),
            ({"repetition_penalty": 0}, "repetition_penalty"),
            ({"n": 0}, "n"),
            ({"n": 100000}, "n"),
            ({"n": 1.5}, "n"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"max_tokens": True}, "max_tokens"),
            ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
            ({"min_tokens": 30}, "min_tokens"),
            ({"seed": "x"}, "seed"),
            ({"stop": ""}, "stop"),
            ({"stop": ["a", ""]}, "stop"),
            ({"stop": [1]}, "stop"),
            ({"stop": ["x"] * 50}, "stop"),
            ({"logit_bias": {"x": 1}}, "logit_bias"),
            ({"logit_bias": {"99999999": 1}}, "logit_bias"),
            ({"logit_bias": {"1": 101}}, "logit_bias"),
            ({"stop_token_ids": [99999999]}, "stop_token_ids"),
            ({"stop_token_ids": [-1]}, "stop_token_ids"),
            ({"logprobs": 3}, "logprobs"),
            ({"top_logprobs": 3}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
            ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
            ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"audio": {"voice": "x"}}, "audio"),
            ({"echo": True}, "echo"),
            ({"nonsense": 1}, "nonsense"),
            ({"guided_regex": "(a+)+$"}, "guided_regex"),
            ({"messages": []}, "messages"),
            ({"messages": None}, "messages"),
            ({"messages": "hi"}, "messages"),
            ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
            ({"messages": [{"role": "user"}]}, "messages[0].content"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                "messages[0].content[0].type",
            ),
        ],
    )
    def test_chat_field_errors(self, server: Server, fields: dict[str, Any], param: str) -> None:
        error = error_of(server.post("/v1/chat/completions", {"model": server.model, **CHAT, **fields}), 400)
        assert error["type"] == "invalid_request_error"
        assert error["param"] is not None
        assert error["param"].startswith(param.split("[")[0])

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"prompt": ""}, "prompt"),
            ({"prompt": []}, "prompt"),
            ({"prompt": [[]]}, "prompt"),
            ({"prompt": [99999999]}, "prompt"),
            ({"prompt": [-1]}, "prompt"),
            ({"prompt": {"text": "x"}}, "prompt"),
            ({"prompt": ["a", 1]}, "prompt"),
            ({"logprobs": 21}, "logprobs"),
            ({"logprobs": True}, "logprobs"),
            ({"best_of": 3}, "best_of"),
            ({"suffix": "end"}, "suffix"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_completion_tokens": 5}, "max_completion_tokens"),
            ({"top_logprobs": 5}, "top_logprobs"),
        ],
    )
    def test_completion_field_errors(self, server: Server, fields: dict[str, Any], param: str) -> None:
        body = {"model": server.model, "prompt": "Once", **fields}
        answer = server.post("/v1/completions", body)
        if fields == {"prompt": ""} and answer.status_code == 200:
            # A tokenizer that adds BOS makes a prompt of nothing.
            assert answer.json()["usage"]["prompt_tokens"] == 1
            return
        assert str(error_of(answer, 400)["param"]).split("[")[0] == param

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
    def test_unknown_and_missing_model(self, server: Server, path: str) -> None:
        body: dict[str, Any] = {**CHAT} if "chat" in path else {"prompt": "x"}
        error = error_of(server.post(path, {**body, "model": "no-such-model"}), 404)
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"
        assert error_of(server.post(path, body), 400)["param"] == "model"

    def test_context_length(self, server: Server) -> None:
        limit = server.max_model_len
        body = {"model": server.model, "prompt": [5] * limit, "max_tokens": 1}
        error = error_of(server.post("/v1/completions", body), 400)
        assert error["code"] == "context_length_exceeded"
        assert str(limit) in error["message"]
        assert str(limit + 1) in error["message"]
        with pytest.raises(openai.BadRequestError):
            server.client.completions.create(model=server.model, prompt=[5] * (limit + 9))

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b'{"a": ' + b"[" * 100000, LONE]
    )
    def test_bodies_that_are_no_json_objects(self, server: Server, body: bytes) -> None:
        answer = server.http.post(f"{server.url}/v1/completions", content=body, timeout=10)
        assert error_of(answer, 400)["code"] == "invalid_json"

    def test_unknown_endpoints(self, server: Server) -> None:
        for path in ("/v1/embeddings", "/v1/images/generations", "/v2", "/v1/responses"):
            assert error_of(server.post(path, {}), 404)["code"] == "unknown_url"
        answer = server.http.get(f"{server.url}/v1/chat/completions", timeout=10)
        error_of(answer, 405)
        assert "POST" in answer.headers["allow"]

    def test_body_too_large(self, server: Server) -> None:
        huge = b'{"prompt": "' + b"x" * (40 << 20) + b'"}'
        answer = server.http.post(f"{server.url}/v1/completions", content=huge, timeout=60)
        assert error_of(answer, 413)["code"] == "body_too_large"
        assert server.complete(seed=1)["usage"]["completion_tokens"] > 0

    # ----------------------------------------------------------------------------- clients that leave

    def test_leaving_a_stream_frees_both_phases(self, server: Server) -> None:
        server.wait_until_free(within_s=5)
        fields = {"model": server.model, **CHAT, "max_tokens": None, "stream": True, "n": 2, **ENDLESS}
        with server.http.stream(
            "POST", f"{server.url}/v1/chat/completions", json=fields, timeout=60
        ) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            assert server.pages_held() > 0
        server.wait_until_free(within_s=2)

    def test_leaving_before_the_answer_frees_both_phases(self, server: Server) -> None:
        server.wait_until_free(within_s=5)
        fields = {"model": server.model, **CHAT, "max_tokens": None, "n": 2, **ENDLESS}
        with pytest.raises(httpx.ReadTimeout):
            server.http.post(f"{server.url}/v1/chat/completions", json=fields, timeout=0.15)
        server.wait_until_free(within_s=2)

    # ---------------------------------------------------------------------------------- operations

    def test_health_ready_metrics(self, server: Server) -> None:
        assert server.http.get(f"{server.url}/health", timeout=10).status_code == 200
        assert server.http.get(f"{server.url}/ready", timeout=10).status_code == 200
        server.complete(seed=1)
        page = server.http.get(f"{server.url}/metrics", timeout=10).text
        assert 'splash_requests_total{code="200",endpoint="/v1/completions"}' in page
        assert "splash_ttft_seconds_count" in page

    def test_timeline_adds_up(self, server: Server) -> None:
        answer = server.complete(seed=1)
        shown = server.http.get(
            f"{server.admin_url}/admin/requests/{answer['id']}/timeline", timeout=10
        ).json()
        line = shown["sequences"][0]
        assert line["finished"] is True
        assert sum(line["stages"].values()) == pytest.approx(line["total_s"], rel=0.01)
