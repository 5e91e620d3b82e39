"""Probes where groups come, go, restart and keep silent."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import cycle
from typing import Any

import pytest

from splash_core.errors import Unavailable
from splash_core.obs.vitals import VitalTasks
from tests.support.probe_world import EVERY_S, RIGHT, WRONG, World


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_another_cover_takes_no_wrong_answers_for_right_ones() -> None:
    async def scenario() -> None:
        world = World(4, 4)
        await world.look(4)
        assert set(world.asked) == {(f"p{index}", f"d{index}") for index in range(4)}
        world.wrong_in("TP")
        world.groups["p0"].state_name = "draining"
        world.groups["d1"].switch("TP")
        await world.look(8)
        assert ("p2", "d1") in world.asked
        assert world.pinned == {"d1": "DP"}
        assert world.groups["d1"].layout == "DP"
        world.groups["p0"].state_name = "ready"
        await world.look(8)
        assert world.pinned == {"d1": "DP"}
        assert [record["groups"][0]["group"] for record in world.watch.to_json()["drifts"]] == ["d1"]
        assert world.watch.to_json()["alarms"] == 1
        world.groups["d1"].pinned = ""
        await world.look(2)
        assert world.watch.to_json()["alarms"] == 0

    run(scenario)


def test_a_group_that_switches_after_a_restart_before_anybody_asks_goes_back() -> None:
    async def scenario() -> None:
        world = World()
        await world.look()
        world.wrong_in("TP")
        world.groups["d0"].restart("DP")
        world.groups["d0"].switch("TP")
        await world.look()
        assert world.pinned == {"d0": "DP"}
        (group,) = world.told()["alarm"]["groups"]
        assert "has restarted and changed its layout" in group["reason"]

    run(scenario)


def test_first_answers_that_never_agree_are_asked_for_once_a_period() -> None:
    async def scenario() -> None:
        world = World()
        turns = cycle([RIGHT, WRONG])
        world.answers = lambda _: next(turns)
        await world.look(20)
        assert len(world.asked) == 3
        world.now += EVERY_S
        await world.look(20)
        assert len(world.asked) == 6
        assert world.told()["reference"] is None
        assert world.told()["alarm"]

    run(scenario)


@pytest.mark.parametrize("error", [Unavailable("away"), ValueError("a bug")])
def test_whatever_goes_wrong_in_a_check_is_tried_again_only_after_a_while(error: Exception) -> None:
    async def scenario() -> None:
        world = World(1, 2)

        def answers(pair: Any) -> Any:
            if pair.names == ("p0", "d0"):
                raise error
            return RIGHT

        world.answers = answers
        await world.look(9)
        assert world.asked.count(("p0", "d0")) == 1
        assert world.told("p0", "d1")["reference"]
        assert world.told()["waits_for"].startswith("given up: ")
        await world.look(4)
        assert world.asked.count(("p0", "d0")) == 2

    run(scenario)


def test_an_error_outside_of_a_check_is_no_busy_loop_either() -> None:
    async def scenario() -> None:
        world = World()
        world.book_error = ValueError("a bug")
        await world.registry.start(VitalTasks())
        await world.watch.start(VitalTasks())
        try:
            for _ in range(20):
                await world.registry.wait_for_change()
            assert world.made == 1
            world.now += 11.0
            while world.made < 2:
                await world.registry.wait_for_change()
        finally:
            await world.watch.stop()
            await world.registry.stop()

    run(scenario)


def test_a_reset_while_a_group_is_being_pinned_holds() -> None:
    async def scenario() -> None:
        world = World(pin_timeout_s=60.0)
        await world.look()
        world.wrong_in("TP")
        group = world.groups["d0"]
        group.switch("TP")
        group.pin_answers = asyncio.Event()
        looking = asyncio.create_task(world.look())
        while not group.pinned:
            await asyncio.sleep(0)
        world.watch.reset()
        group.pin_answers.set()
        await looking
        found = world.watch.to_json()
        assert (found["alarms"], world.told()["reference"]) == (0, None)
        assert found["drifts"][0]["groups"][0]["pinned_to"] == "DP"
        await world.look()
        assert world.told()["last"]["verdict"] == "REFERENCE"

    run(scenario)


def test_an_alarm_of_a_group_that_has_gone_ends_with_its_series() -> None:
    async def scenario() -> None:
        world = World(1, 2)
        await world.look(2)
        world.wrong_in("TP")
        world.groups["d1"].switch("TP")
        await world.look()
        assert world.watch.alarm_of("d1") is not None
        world.groups["d1"].control_error = Unavailable("connection refused")
        world.now += EVERY_S - 10
        await world.look()
        assert world.watch.alarm_of("d1") is not None
        world.now += 20
        await world.look()
        assert world.watch.alarm_of("d1") is None
        assert [pair["decode"] for pair in world.watch.to_json()["pairs"]] == ["d0"]
        assert not [line for line in world.page if "d1" in line]
        assert [line for line in world.page if "d0" in line]

    run(scenario)


def test_an_alarm_ends_where_the_two_groups_fit_together_no_longer() -> None:
    async def scenario() -> None:
        world = World(2, 2)
        await world.look(2)
        world.wrong_in("TP")
        world.groups["d1"].switch("TP")
        await world.look()
        assert world.watch.to_json()["alarms"] == 1
        for name in ("p0", "d1"):
            world.groups[name].restart("DP")
            world.groups[name].abi.dtype = "bf16"
        await world.look()
        assert world.watch.to_json()["alarms"] == 0
        assert world.told("p0", "d1")["last"]["verdict"] == "REFERENCE"

    run(scenario)


def test_a_pair_that_leaves_the_cover_is_asked_until_its_alarm_ends_and_waits_for_nothing() -> None:
    async def scenario() -> None:
        world = World(2, 2)
        world.groups["p0"].state_name = "draining"
        await world.look(2)
        assert world.asked[-1] == ("p1", "d1")
        world.wrong_in("TP")
        world.groups["d0"].switch("TP")
        await world.look()
        assert world.told("p1", "d0")["alarm"]
        world.groups["p0"].state_name = "ready"
        world.obstacles[("p1", "d0")] = "busy"
        await world.look(4)
        assert world.told()["last"]["verdict"] == "SAME"
        assert world.told("p1", "d0")["waits_for"] == "busy"
        world.obstacles.clear()
        await world.look()
        assert world.told("p1", "d0")["last"]["verdict"] == "SAME"
        world.groups["d0"].pinned = ""
        await world.look()
        assert world.watch.to_json()["alarms"] == 0
        gauges = [line for line in world.page if "last_check" in line or "_alarm{" in line]
        assert [line for line in gauges if 'decode="d0",prefill="p0"' in line]
        await world.look()
        gone = [line for line in world.page if 'decode="d0",prefill="p1"' in line]
        assert [line.partition("{")[0] for line in gone if "total" not in line] == []

    run(scenario)


def test_what_a_pair_waited_for_is_over_when_it_is_not_asked_any_more() -> None:
    async def scenario() -> None:
        world = World(2, 1)
        world.obstacles[("p1", "d0")] = "busy"
        await world.look(2)
        assert world.told("p1", "d0")["waits_for"] == "busy"
        world.groups["p1"].state_name = "draining"
        await world.look()
        assert world.told("p1", "d0")["waits_for"] is None

    run(scenario)
