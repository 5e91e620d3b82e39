"""Real engines in real processes: groups of different T and layout, switched and cancelled while they run."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import psutil
import pytest

from splash_core.errors import Unavailable
from splash_core.layout.layout import Layout
from splash_core.pb import control_pb2
from splash_core.rpc.errors import from_rpc_error
from tests.support.fake_groups import FakeRouter, await_ready, fake_router, greedy, running, start_group

pytestmark = pytest.mark.e2e

REQUESTS = 8
TOKENS = 24


@pytest.fixture(scope="module", params=("shm", "mooncake"))
def groups(
    request: pytest.FixtureRequest, tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Prefill with 2 ranks in TP, decode with 4 in DP; fp64, so that no tie decides a token."""
    run_dir = tmp_path_factory.mktemp("t")
    flags = {
        "engine": "torch",
        "transport": request.param,
        "dtype": "fp64",
        "page-size": 4,
        "kv-bytes": 600_000,
        "max-model-len": 120,
        "chunk-tokens": 16,
        "precopy-bytes-per-step": 4096,
        "host-ranks": 6,
        "layouts": ",".join(Layout),
    }
    children = [
        start_group("prefill", tiny_v3, run_dir, name="prefill-0", flags={**flags, "ranks": 2}),
        start_group("decode", tiny_v3, run_dir, name="decode-0", flags={**flags, "ranks": 4}),
    ]
    with running(*children):
        await_ready(run_dir, *children)
        yield run_dir


async def _all_tokens(router: FakeRouter, name: str) -> list[list[int]]:
    """Greedy and seeded requests of different lengths, all at once."""
    jobs = [
        router.generate(
            f"{name}{i}",
            [(13 * i + 5 * position) % 300 for position in range(3 + 9 * i)],
            greedy(TOKENS) if i % 2 else greedy(TOKENS, temperature=0.9, seed=i),
        )
        for i in range(REQUESTS)
    ]
    return [outcome.tokens for outcome in await asyncio.gather(*jobs)]


async def _switch_about(router: FakeRouter, draw: random.Random) -> int:
    """Switch both groups at random until cancelled."""
    done = 0
    try:
        while True:
            control = draw.choice([router.prefill_control, router.decode_control])
            layout = draw.choice(list(Layout))
            mode = draw.choice(["blocking", "overlapped", "precopied"])
            result = await control.SetLayout(control_pb2.SetLayoutRequest(layout=layout, mode=mode))
            done += result.from_layout != result.to_layout
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return done


async def _cancel_some(router: FakeRouter, draw: random.Random) -> None:
    for index in range(12):
        prompt = [draw.randrange(300) for _ in range(30)]
        job = asyncio.ensure_future(router.generate(f"gone{index}", prompt, greedy(60)))
        await asyncio.sleep(draw.uniform(0.0, 0.3))
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)


async def _a_killed_rank_ends_its_group(router: FakeRouter, run_dir: Path) -> None:
    """In the middle of collectives: the others must not wait for it."""
    jobs = [
        asyncio.ensure_future(router.generate(f"k{i}", list(range(20 + i)), greedy(90))) for i in range(4)
    ]
    await asyncio.sleep(0.5)
    leader = psutil.Process(json.loads((run_dir / "decode-0.ready").read_text())["pid"])
    leader.children()[2].kill()
    outcomes = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 10)
    for outcome in outcomes:
        assert isinstance(outcome, grpc.aio.AioRpcError)
        error = from_rpc_error(outcome, peer="decode")
        assert isinstance(error, Unavailable)
    assert any("rank 2" in str(from_rpc_error(o, peer="")) for o in outcomes if isinstance(o, grpc.RpcError))
    assert leader.wait(timeout=10) in (1, None)


def test_switches_and_cancels_of_others_change_no_token_and_leave_no_page(groups: Path) -> None:
    async def scenario() -> None:
        draw = random.Random(11)
        async with fake_router(groups) as router:
            plain = await _all_tokens(router, "plain")
            assert all(len(tokens) == TOKENS for tokens in plain)
            switching = asyncio.ensure_future(_switch_about(router, draw))
            cancelling = asyncio.ensure_future(_cancel_some(router, draw))
            for round_ in range(2):
                assert await _all_tokens(router, f"round{round_}-") == plain
            await cancelling
            switching.cancel()
            assert await switching >= 4
            await router.until_empty(within_s=5)
            await _a_killed_rank_ends_its_group(router, groups)

    asyncio.run(scenario())
