"""Entry to the queue and room in a group: arithmetic on stated loads."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash_core.dispatch.admission import (
    Demand,
    DeploymentLimits,
    GroupLimits,
    GroupLoad,
    Limits,
    QueueLimits,
    QueueLoad,
    has_room,
    project,
    refuse_entry,
    retry_after_s,
)

LIMITS = QueueLimits(requests=4, prompt_tokens=100)


def load(*, projected: int, total: int = 1000, sequences: int = 1, address: str = "d") -> GroupLoad:
    return GroupLoad(
        address=address,
        group=address,
        limits=GroupLimits(max_model_len=9000, max_request_tokens=9000),
        kv_tokens_total=total,
        kv_tokens_projected=projected,
        sequences=sequences,
        prompt_tokens_pending=0,
    )


def refusal(waiting: tuple[int, int], brings: tuple[int, int]) -> str | None:
    return refuse_entry(
        sequences=brings[0],
        prompt_tokens=brings[1],
        waiting=QueueLoad(requests=waiting[0], prompt_tokens=waiting[1]),
        limits=LIMITS,
    )


def test_queue_is_bounded_by_requests() -> None:
    assert refusal((3, 10), (1, 10)) is None
    reason = refusal((3, 10), (2, 10))
    assert reason is not None
    assert "3 requests wait" in reason
    assert "4" in reason


def test_queue_is_bounded_by_prompt_tokens() -> None:
    assert refusal((1, 60), (1, 40)) is None
    reason = refusal((1, 60), (1, 41))
    assert reason is not None
    assert "60 prompt tokens wait" in reason
    assert "41" in reason


def test_one_large_request_enters_an_empty_queue() -> None:
    assert refusal((0, 0), (1, 10_000)) is None


@given(st.integers(0, 4000), st.integers(1, 4000), st.integers(0, 5))
def test_room_is_projection_plus_demand(projected: int, prompt: int, sequences: int) -> None:
    demand = Demand(prompt_tokens=prompt, output_tokens=10, required_output_tokens=10)
    fits = projected + prompt + 10 <= 1000
    assert has_room(load(projected=projected, sequences=sequences), demand) == (fits or sequences == 0)


def test_overcommit_lets_the_group_queue_for_itself() -> None:
    demand = Demand(prompt_tokens=10, output_tokens=10, required_output_tokens=10)
    assert has_room(load(projected=1980), demand, overcommit=2.0)
    assert not has_room(load(projected=1981), demand, overcommit=2.0)


def test_projection_expects_no_more_than_asked() -> None:
    assert project(prompt_tokens=5, max_tokens=7, expected_output=512).kv_tokens == 12
    assert project(prompt_tokens=5, max_tokens=9999, expected_output=512).kv_tokens == 517


def test_limits_of_different_pairs_do_not_hide_each_other() -> None:
    long = Limits(max_model_len=1000, max_prompt=100)
    wide = Limits(max_model_len=500, max_prompt=500)
    limits = DeploymentLimits(pairs=(wide, long), max_scored=500)
    assert limits.max_model_len == 1000
    assert [limits.of_prompt(prompt) for prompt in (100, 101, 500, 501)] == [long, wide, wide, wide]


@given(st.integers(0, 10_000), st.floats(0.001, 100))
def test_retry_after_is_bounded(requests: int, seconds: float) -> None:
    wait = retry_after_s(QueueLoad(requests=requests, prompt_tokens=0), seconds_per_request=seconds)
    assert 1.0 <= wait <= 60.0


def test_charges_count_until_the_group_reports_them() -> None:
    from services.router.registry import Registry
    from tests.support.stub_worker import StubWorker

    now = [0.0]
    prefill, decode = StubWorker("p", "prefill"), StubWorker("d", "decode")

    async def scenario() -> list[tuple[int, int, int]]:
        registry = Registry(
            {"prefill": [prefill], "decode": [decode]},
            clock=lambda: now[0],
            poll_interval_s=60,
            poll_timeout_s=1,
        )
        seen: list[tuple[int, int, int]] = []

        async def look() -> None:
            for address in ("p", "d"):
                await registry.refresh(address)
            [pair] = registry.pairs()
            seen.append(
                (pair.decode.kv_tokens_projected, pair.decode.sequences, pair.prefill.prompt_tokens_pending)
            )

        await look()
        charge = registry.charge(
            prefill="p",
            decode="d",
            demand=Demand(prompt_tokens=30, output_tokens=20, required_output_tokens=20),
        )
        now[0] = 1.0
        await look()
        now[0] = 2.0
        registry.leased(charge)
        # Asked at the very time of the lease: may not include it yet.
        await look()
        now[0], decode.projected, decode.running = 3.0, 50, 1
        await look()
        registry.drawn(charge)
        await look()
        registry.discharge(charge)
        decode.projected, decode.running = 0, 0
        await look()
        return seen

    assert asyncio.run(scenario()) == [
        (0, 0, 0),
        (50, 1, 30),
        (50, 1, 30),
        (50, 1, 30),
        (50, 1, 0),
        (0, 0, 0),
    ]


def test_bad_limits_are_refused() -> None:
    from pathlib import Path

    from services.router.config import RouterConfig
    from splash_core.errors import ConfigError

    with pytest.raises(ConfigError, match="max_queued_requests"):
        RouterConfig(model=Path("/"), prefill=(), decode=(), max_queued_requests=0)
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0"):
        RouterConfig(model=Path("/"), prefill=(), decode=(), admin_host="0.0.0.0")
    RouterConfig(model=Path("/"), prefill=(), decode=(), admin_host="0.0.0.0", admin_key="secret")
