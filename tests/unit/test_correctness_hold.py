"""What probes tell of a pin whose answer is lost, and when that alarm ends."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from splash_core.errors import Conflict, SplashError, Unavailable
from tests.support.probe_world import World


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def drifted(world: World) -> dict[str, Any]:
    await world.look()
    world.wrong_in("TP")
    world.groups["d0"].switch("TP")
    await world.look()
    (group,) = world.told()["alarm"]["groups"]
    return group


@pytest.mark.parametrize("lost", [None, Unavailable("connection lost")])
def test_a_pin_whose_answer_is_lost_is_found_in_the_state_and_ends_the_alarm(
    lost: SplashError | None,
) -> None:
    async def scenario() -> None:
        world = World()
        group = world.groups["d0"]
        group.pin_lost, group.pin_answers = lost, None if lost else asyncio.Event()
        found = await drifted(world)
        assert (group.pinned, found["pinned_to"]) == ("DP", "DP")
        assert "failed" not in found["reason"]
        await world.look(2)
        assert world.told()["last"]["verdict"] == "SAME"
        assert world.told()["alarm"]
        group.pinned = ""
        await world.look()
        assert world.told()["alarm"] is None

    run(scenario)


def test_a_pin_that_is_not_in_the_state_has_failed() -> None:
    async def scenario() -> None:
        world = World()
        world.groups["d0"].pin_refused = Unavailable("starting")
        found = await drifted(world)
        assert found["pinned_to"] is None
        assert found["reason"].endswith("but that failed: starting")

    run(scenario)


def test_a_pin_that_is_refused_needs_no_look() -> None:
    async def scenario() -> None:
        world = World()
        world.groups["d0"].pin_refused = Conflict("DP is not feasible")
        found = await drifted(world)
        assert found["reason"].endswith("but that failed: DP is not feasible")

    run(scenario)


def test_a_pin_of_which_nobody_tells_counts_until_the_group_does() -> None:
    async def scenario() -> None:
        world = World()
        group = world.groups["d0"]
        group.pin_lost = Unavailable("connection lost")
        await world.look()
        world.wrong_in("TP")
        group.switch("TP")
        refresh = world.registry.refresh

        async def silent_once_pinned(address: str) -> None:
            group.control_error = Unavailable("connection refused") if group.pinned else None
            await refresh(address)

        world.registry.refresh = silent_once_pinned  # type: ignore[method-assign]
        await world.look()
        (found,) = world.told()["alarm"]["groups"]
        assert found["pinned_to"] == "DP"
        assert found["reason"].endswith("whether that was done is not known: connection lost")
        world.registry.refresh, group.control_error = refresh, None  # type: ignore[method-assign]
        await world.look(2)
        assert world.told()["alarm"]
        group.pinned = ""
        await world.look()
        assert world.told()["alarm"] is None

    run(scenario)
