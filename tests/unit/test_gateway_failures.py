"""What a client sees when groups fail, queues fill and keys are wrong: real wire, scripted groups."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from splash_core.errors import (
    Conflict,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    InvariantBroken,
    NotFound,
    Overloaded,
    Unavailable,
)
from tests.support.openai_conformance import error_of
from tests.support.scripted_router import RunningRouter, running_router, spell, write_tokenizer

CHAT: dict[str, Any] = {
    "model": "test-model",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 8,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def router(folder: Path) -> Iterator[RunningRouter]:
    with running_router(folder, max_queued_requests=4, max_body_bytes=10_000) as running:
        yield running
        wait_free(running)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30) as client:
        yield client


def wait_free(router: RunningRouter, *, within_s: float = 2.0) -> None:
    end = time.monotonic() + within_s
    while router.call(lambda: router.backend.counts.held) != 0:
        assert time.monotonic() < end, "calls are still open"
        time.sleep(0.01)


def wait_ready(router: RunningRouter, http: httpx.Client, status: int = 200) -> httpx.Response:
    end = time.monotonic() + 5
    while (answer := http.get(f"{router.url}/ready")).status_code != status:
        assert time.monotonic() < end, answer.text
        time.sleep(0.02)
    return answer


def chat(router: RunningRouter, http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(f"{router.url}/v1/chat/completions", json={**CHAT, **fields})


STATUS_TABLE = [
    (InvalidRequest("bad value", param="top_k"), 400),
    (ContextTooLong("too long", param="messages"), 400),
    (NotFound("no such thing"), 404),
    (Conflict("not now"), 409),
    (Overloaded("pool is full", retry_after_s=7.2), 429),
    (InvariantBroken("a bug"), 500),
    (Unavailable("group is down"), 503),
    (DeadlineExceeded("too late"), 504),
]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_workers_status_reaches_the_client(
    router: RunningRouter, http: httpx.Client, phase: str, stream: bool
) -> None:
    wait_ready(router, http)
    for error, status in STATUS_TABLE:
        setattr(router.backend.faults, f"{phase}_error", error)
        answer = chat(router, http, stream=stream)
        shown = error_of(answer, status)
        assert str(error) in shown["message"]
        if isinstance(error, InvalidRequest):
            assert shown["param"] == error.param
            assert shown["code"] == error.code
        if status == 429:
            assert answer.headers["retry-after"] == "8"
        wait_free(router)


def test_break_in_a_stream_is_an_error_object_and_no_finish(
    router: RunningRouter, http: httpx.Client
) -> None:
    wait_ready(router, http)
    router.backend.faults.break_after = 3
    with http.stream("POST", f"{router.url}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        assert answer.status_code == 200
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]
    assert events[-1]["error"]["type"] == "service_unavailable_error"
    assert "has died" in events[-1]["error"]["message"]
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    assert len([choice for choice in choices if choice["delta"].get("content")]) == 3
    assert all(choice["finish_reason"] is None for choice in choices)
    client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="x", max_retries=0)
    with pytest.raises(openai.APIError, match="has died"):
        for _ in client.chat.completions.create(
            model="test-model", messages=[{"role": "user", "content": "hi"}], max_tokens=8, stream=True
        ):
            pass
    client.close()
    page = http.get(f"{router.url}/metrics").text
    assert "splash_stream_errors_total 2" in page


def test_break_of_a_whole_answer_is_a_503(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    router.backend.faults.break_after = 3
    assert "has died" in error_of(chat(router, http), 503)["message"]


def test_one_broken_choice_ends_all(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    router.backend.faults.break_after = 3
    error_of(chat(router, http, n=3), 503)
    wait_free(router)


def test_closed_port_is_a_503_and_unready_with_cause(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    asyncio.run_coroutine_threadsafe(router.backend.stop("decode"), router.loop).result(10)
    error_of(chat(router, http), 503)
    answer = wait_ready(router, http, status=503)
    assert "decode-0" in error_of(answer, 503)["message"]
    assert http.get(f"{router.admin_url}/admin/cluster").json()["groups"][1]["state"] == "unreachable"
    audit = http.get(f"{router.admin_url}/admin/audit").json()
    assert [group["group"] for group in audit["not_asked"]] == ["decode-0"]


def test_failed_group_ends_health(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    assert http.get(f"{router.url}/health").status_code == 200
    router.backend.decode.state = "failed"
    answer = wait_ready(router, http, status=503)
    assert "is failed" in error_of(answer, 503)["message"]
    assert "has failed" in error_of(http.get(f"{router.url}/health"), 503)["message"]


def test_over_long_input_calls_no_worker(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    calls = router.backend.counts.prefill_calls + router.backend.counts.decode_calls
    body = {"model": "test-model", "prompt": [1] * 1024, "max_tokens": 1}
    error = error_of(http.post(f"{router.url}/v1/completions", json=body), 400)
    assert error["code"] == "context_length_exceeded"
    assert router.backend.counts.prefill_calls + router.backend.counts.decode_calls == calls


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_token_more_than_a_pool_holds_calls_no_worker(
    folder: Path, http: httpx.Client, phase: str
) -> None:
    """Within the context, beyond the pool: a client's error before any page is reserved or step run."""
    limit, output = 600, 20
    with running_router(folder) as router:
        getattr(router.backend, phase).max_request_tokens = limit
        router.backend.prefill.incarnation = router.backend.decode.incarnation = "2"
        longest = limit if phase == "prefill" else limit - output
        end = time.monotonic() + 10
        body = {"model": "test-model", "prompt": [1] * (longest + 1), "max_tokens": output}
        while (answer := http.post(f"{router.url}/v1/completions", json=body)).status_code != 400:
            assert time.monotonic() < end, answer.text
            router.call(router.backend.counts.requests.clear)
            time.sleep(0.05)
        assert error_of(answer, 400)["code"] == "context_length_exceeded"
        counts = router.backend.counts
        calls = counts.prefill_calls + counts.decode_calls
        for _ in range(3):
            error_of(http.post(f"{router.url}/v1/completions", json=body), 400)
        assert counts.prefill_calls + counts.decode_calls == calls
        body["prompt"] = [1] * longest
        assert http.post(f"{router.url}/v1/completions", json=body).status_code == 200


def test_queue_overflow_is_a_429_with_numbers(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    gate = router.call(asyncio.Event)
    router.backend.faults.hold_prefill = gate
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(chat, router, http) for _ in range(4)]
        end = time.monotonic() + 5
        while router.call(lambda: router.backend.counts.prefills_running) < 4:
            assert time.monotonic() < end
            time.sleep(0.01)
        answer = chat(router, http)
        router.call(gate.set)
        assert [done.result().status_code for done in waiting] == [200] * 4
    assert "4 requests wait" in error_of(answer, 429)["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert chat(router, http).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_prefill_runs_frees_both(
    router: RunningRouter, http: httpx.Client, stream: bool
) -> None:
    wait_ready(router, http)
    router.backend.faults.hold_prefill = router.call(asyncio.Event)
    with pytest.raises(httpx.ReadTimeout):
        http.post(f"{router.url}/v1/chat/completions", json={**CHAT, "stream": stream}, timeout=0.3)
    wait_free(router, within_s=1.0)
    assert router.backend.counts.cancelled == 2


def test_abort_storm_leaves_nothing_and_traffic_flows(folder: Path, http: httpx.Client) -> None:
    with running_router(folder) as router:
        wait_ready(router, http)
        router.backend.faults.prefill_delay_s = 30

        async def storm() -> None:
            async with httpx.AsyncClient(limits=httpx.Limits(max_connections=100)) as client:

                async def one() -> None:
                    with pytest.raises(httpx.ReadTimeout):
                        await client.post(f"{router.url}/v1/chat/completions", json=CHAT, timeout=2)

                await asyncio.gather(*(one() for _ in range(60)))

        asyncio.run(storm())
        wait_free(router)
        router.backend.faults.prefill_delay_s = 0
        assert chat(router, http).status_code == 200


def test_stop_string_cancels_the_sequence_at_once(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    script = [*spell(router.tokenizer, "one END two"), *spell(router.tokenizer, "x" * 900)]
    router.backend.script = lambda prompt, sampling: script
    router.backend.faults.token_delay_s = 0.01
    began = time.monotonic()
    answer = chat(router, http, stop=["END"], max_tokens=900).json()
    assert time.monotonic() - began < 5
    assert answer["choices"][0]["message"]["content"] == "one "
    assert answer["usage"]["completion_tokens"] == len("one END")
    wait_free(router)


EMOJI = "a😀é\u200d漢!"


@pytest.mark.parametrize("stop", [None, "😀é\u200d漢?"])
def test_characters_split_over_tokens(router: RunningRouter, http: httpx.Client, stop: str | None) -> None:
    wait_ready(router, http)
    script = spell(router.tokenizer, EMOJI)
    router.backend.script = lambda prompt, sampling: script
    fields = {"max_tokens": len(script), "logprobs": True, "stop": stop}
    whole = chat(router, http, **fields).json()["choices"][0]
    assert whole["message"]["content"] == EMOJI
    assert [entry["bytes"] for entry in whole["logprobs"]["content"]] == [[byte] for byte in EMOJI.encode()]
    body = {**CHAT, **fields, "stream": True}
    with http.stream("POST", f"{router.url}/v1/chat/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line][:-1]
    texts = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines]
    assert "".join(texts) == EMOJI
    assert not any("\ufffd" in text for text in texts)


def test_character_cut_by_max_tokens(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    script = spell(router.tokenizer, EMOJI)
    router.backend.script = lambda prompt, sampling: script
    answer = chat(router, http, max_tokens=3, logprobs=True).json()["choices"][0]
    assert answer["message"]["content"] == "a\ufffd"
    assert answer["finish_reason"] == "length"
    assert [entry["bytes"] for entry in answer["logprobs"]["content"]] == [[97], [240], [159]]
    assert answer["logprobs"]["content"][1]["token"] == "\\xf0"


def test_seeds_are_one_apart_and_drawn_when_absent(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)

    def seeds(**fields: Any) -> list[int]:
        router.backend.counts.requests.clear()
        assert chat(router, http, n=3, **fields).status_code == 200
        made = sorted(router.backend.counts.requests, key=lambda request: request.request_id)
        return [request.sampling.seed for request in made]

    assert seeds(seed=41) == [41, 42, 43]
    drawn = seeds()
    assert len(set(drawn)) == 3
    assert seeds() != drawn


def test_a_top_k_that_means_nothing_is_told_all_that_mean_something(
    router: RunningRouter, http: httpx.Client
) -> None:
    wait_ready(router, http)
    answer = chat(router, http, top_k=-2)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "top_k must be at least 1, or 0 or -1 for no limit, got -2"
    assert answer.json()["error"]["param"] == "top_k"


def test_sampling_reaches_the_worker(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    router.backend.counts.requests.clear()
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "presence_penalty": 0.25}
    fields |= {"frequency_penalty": -0.5, "repetition_penalty": 1.5, "min_tokens": 2}
    fields |= {"logit_bias": {"3": -1.5}, "stop_token_ids": [9], "logprobs": True, "top_logprobs": 2}
    assert chat(router, http, **fields).status_code == 200
    [sent] = router.backend.counts.requests
    end = router.tokenizer.get_vocab()["<|end|>"]
    assert sent.sampling.temperature == 0.5
    assert sent.sampling.top_k == 0
    assert (sent.sampling.top_p, sent.sampling.min_p) == (0.9, 0.1)
    assert (sent.sampling.presence_penalty, sent.sampling.frequency_penalty) == (0.25, -0.5)
    assert (sent.sampling.repetition_penalty, sent.sampling.min_tokens) == (1.5, 2)
    assert dict(sent.sampling.logit_bias) == {3: -1.5}
    assert list(sent.sampling.stop_token_ids) == sorted([9, end])
    assert sent.sampling.logprobs == 2
    assert not sent.sampling.HasField("prompt_logprobs")
    assert chat(router, http, ignore_eos=True).status_code == 200
    assert list(router.backend.counts.requests[-1].sampling.stop_token_ids) == []


def test_defaults_of_max_tokens(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    router.backend.script = lambda prompt, sampling: [sampling.stop_token_ids[0]]
    assert chat(router, http, max_tokens=None).json()["choices"][0]["finish_reason"] == "stop"
    sent = router.backend.counts.requests[-1]
    assert sent.sampling.max_tokens == 1024 - len(sent.prompt)
    http.post(f"{router.url}/v1/completions", json={"model": "test-model", "prompt": "x"})
    assert router.backend.counts.requests[-1].sampling.max_tokens == 16


def test_template_refusals_are_the_clients(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    messages = [{"role": "assistant", "content": ""}]
    error = error_of(chat(router, http, messages=messages), 400)
    assert error["param"] == "messages"
    assert "an assistant message is empty" in error["message"]


def test_body_limit(router: RunningRouter, http: httpx.Client) -> None:
    wait_ready(router, http)
    answer = chat(router, http, messages=[{"role": "user", "content": "x" * 20_000}])
    assert "10000 bytes" in error_of(answer, 413)["message"]

    def endless() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 1000

    error_of(http.post(f"{router.url}/v1/completions", content=endless()), 413)


def test_request_deadline(folder: Path, http: httpx.Client) -> None:
    with running_router(folder, request_timeout_s=0.3) as router:
        wait_ready(router, http)
        router.backend.faults.token_delay_s = 0.05
        error_of(chat(router, http, max_tokens=200), 504)
        with http.stream(
            "POST", f"{router.url}/v1/chat/completions", json={**CHAT, "max_tokens": 200, "stream": True}
        ) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        assert json.loads(lines[-1])["error"]["type"] == "timeout_error"
        wait_free(router)


def test_api_key(folder: Path, http: httpx.Client) -> None:
    with running_router(folder, api_key="secret", admin_key="other") as router:
        wait_ready(router, http)
        assert error_of(chat(router, http), 401)["code"] == "invalid_api_key"
        for key, status in (("wrong", 401), ("secret", 200)):
            headers = {"Authorization": f"Bearer {key}"}
            answer = http.post(f"{router.url}/v1/chat/completions", json=CHAT, headers=headers)
            assert answer.status_code == status
        assert http.get(f"{router.admin_url}/admin/cluster").status_code == 401
        headers = {"Authorization": "Bearer other"}
        assert http.get(f"{router.admin_url}/admin/cluster", headers=headers).status_code == 200


def test_groups_of_another_model_are_never_asked(folder: Path, http: httpx.Client) -> None:
    with running_router(folder, fingerprint="a-1") as router:
        # The fake groups tell no fingerprint, which is that of no checkpoint.
        answer = wait_ready(router, http, 503)
        end = time.monotonic() + 5
        while "same --model" not in answer.text:
            assert time.monotonic() < end, answer.text
            answer = wait_ready(router, http, 503)

        def tell(model: str, name: str, incarnation: str) -> None:
            for group in (router.backend.prefill, router.backend.decode):
                group.abi.model, group.abi.model_name, group.incarnation = model, name, incarnation

        router.call(lambda: tell("a-2", "other-model", "2"))
        while "other-model" not in (message := error_of(chat(router, http), 503)["message"]):
            assert time.monotonic() < end, message
        assert all(word in message for word in ("prefill-0", "a-1", "a-2", repr(folder.name)))
        assert router.call(lambda: router.backend.counts.prefill_calls) == 0
        assert router.call(lambda: router.backend.counts.decode_calls) == 0
        # What only scores its prompt asks prefill alone, and is refused as well.
        scoring = {"model": "test-model", "prompt": "x", "echo": True, "max_tokens": 0}
        error_of(http.post(f"{router.url}/v1/completions", json=scoring), 503)
        router.call(lambda: tell("a-1", "the-model", "3"))
        wait_ready(router, http)
        assert chat(router, http).status_code == 200
