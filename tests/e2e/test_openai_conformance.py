"""The OpenAI suite against `splash up`'s processes: router, prefill and decode groups of two ranks each."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from services.launch import Stack
from splash_core.checkpoints.tiny import write_tiny
from splash_core.config import UpSettings
from tests.support.openai_conformance import ENDLESS, OpenAiConformance, Server, openai_client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = write_tiny(tmp_path_factory.mktemp("checkpoint") / "tiny", family="v3", seed=3)
    settings = UpSettings(
        model=str(model),
        transport="mooncake",
        port=0,
        admin_port=0,
        # In fp64 no rounding depends on who shares a batch.
        dtype="fp64",
        page_size=8,
        kv_bytes=16 << 20,
        run_dir=str(tmp_path_factory.mktemp("run")),
        start_timeout_s=300.0,
    )
    with Stack(settings) as running:
        yield running


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai_client(stack.url) as made:
        yield made


@pytest.fixture
def server(stack: Stack, http: httpx.Client, client: openai.OpenAI) -> Iterator[Server]:
    stack.check()
    yield Server(url=stack.url, admin_url=stack.admin_url, model="tiny", http=http, client=client)
    stack.check()


class TestSplashUp(OpenAiConformance):
    """All cases, and those that need a model that computes."""

    @pytest.mark.parametrize("bias", [100, -100])
    def test_logit_bias_decides(self, server: Server, bias: int) -> None:
        [letter] = server.post("/tokenize", {"prompt": "a", "add_special_tokens": False}).json()["tokens"]
        fields: dict[str, Any] = {"temperature": 0, "logit_bias": {str(letter): bias}, **ENDLESS}
        text = server.chat(**fields)["choices"][0]["message"]["content"]
        assert text.count("a") == (24 if bias > 0 else 0)

    def test_greedy_takes_the_best(self, server: Server) -> None:
        answer = server.chat(temperature=0, logprobs=True, top_logprobs=1, **ENDLESS)
        for entry in answer["choices"][0]["logprobs"]["content"]:
            assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]

    def test_echo_scores_are_the_scores_of_generation(self, server: Server) -> None:
        prompt = "Once upon"
        fresh = server.complete(prompt=prompt, temperature=0, logprobs=1, max_tokens=8, **ENDLESS)
        ids = server.post("/tokenize", {"prompt": prompt}).json()["tokens"]
        bias: dict[str, float] = {}
        generated = fresh["choices"][0]["logprobs"]
        pairs = zip(generated["tokens"], generated["token_logprobs"], strict=True)
        for token, logprob in pairs:
            if not (token.isascii() and len(token) == 1):
                break
            [token_id] = server.post("/tokenize", {"prompt": token, "add_special_tokens": False}).json()[
                "tokens"
            ]
            ids.append(token_id)
            scored = server.complete(prompt=ids, echo=True, max_tokens=0, logprobs=1, logit_bias=bias)
            last = scored["choices"][0]["logprobs"]["token_logprobs"][-1]
            assert last == pytest.approx(logprob, abs=1e-9)
        answer = server.complete(prompt=prompt, echo=True, max_tokens=0, logprobs=1)
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]

    def test_layout_switch_changes_no_text(self, server: Server) -> None:
        before = server.chat(seed=7, max_tokens=64, **ENDLESS)["choices"][0]["message"]["content"]
        for phase, layout in (("decode", "TP"), ("prefill", "DOP"), ("decode", "CP"), ("prefill", "CP")):
            body = {"phase": phase, "layout": layout}
            switched = server.http.post(f"{server.admin_url}/admin/layout", json=body, timeout=60)
            assert switched.status_code == 200, switched.text
            assert switched.json()["to"] == layout
            assert server.chat(seed=7, max_tokens=64, **ENDLESS)["choices"][0]["message"]["content"] == before

    def test_leaving_while_a_long_prompt_is_read(self, server: Server) -> None:
        server.wait_until_free(within_s=5)
        body = {"model": server.model, "prompt": [65] * 2000, "n": 3, "max_tokens": 50, **ENDLESS}
        with pytest.raises(httpx.ReadTimeout):
            server.http.post(f"{server.url}/v1/completions", json=body, timeout=0.1)
        server.wait_until_free(within_s=10)
        assert server.complete(seed=1)["usage"]["completion_tokens"] > 0

    def test_abort_storm_leaves_nothing(self, server: Server) -> None:
        server.wait_until_free(within_s=5)
        text = server.complete(seed=1, **ENDLESS)["choices"][0]["text"]
        limits = httpx.Limits(max_connections=40)

        async def storm() -> list[bool]:
            async with httpx.AsyncClient(limits=limits) as client:

                async def one(index: int) -> bool:
                    body = {
                        "model": server.model,
                        "prompt": [index + 1] * (20 * index + 1),
                        "max_tokens": 200,
                    }
                    try:
                        url, patience_s = f"{server.url}/v1/completions", 0.2 + 0.02 * index
                        await client.post(url, json={**body, "max_tokens": 200}, timeout=patience_s)
                    except httpx.ReadTimeout:
                        return True
                    return False

                return list(await asyncio.gather(*(one(index) for index in range(40))))

        assert any(asyncio.run(storm()))
        server.wait_until_free(within_s=2)
        assert server.complete(seed=1, **ENDLESS)["choices"][0]["text"] == text
