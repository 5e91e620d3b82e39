"""The OpenAI suite against the whole gateway, over scripted groups on the real wire."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.support.openai_conformance import OpenAiConformance, Server, openai_client
from tests.support.scripted_router import RunningRouter, running_router, write_tokenizer


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRouter]:
    folder = write_tokenizer(tmp_path_factory.mktemp("model"))
    with running_router(folder) as running:
        yield running


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(router: RunningRouter) -> Iterator[openai.OpenAI]:
    with openai_client(router.url) as made:
        yield made


@pytest.fixture
def server(router: RunningRouter, http: httpx.Client, client: openai.OpenAI) -> Iterator[Server]:
    # Slow enough for clients to leave, fast enough to stay a unit test.
    router.backend.faults.token_delay_s = 0.002
    assert http.get(f"{router.url}/ready").status_code == 200
    yield Server(url=router.url, admin_url=router.admin_url, model="test-model", http=http, client=client)
    assert router.call(lambda: router.backend.counts.held) == 0


class TestGateway(OpenAiConformance):
    """All cases."""
