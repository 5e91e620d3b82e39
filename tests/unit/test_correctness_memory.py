"""A router that starts anew knows the references of the one before, from the groups that live on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from splash_core.errors import ConfigError, DeadlineExceeded, InvalidRequest, Unavailable
from splash_core.pb import common_pb2
from splash_core.policy.correctness_memory import memory_from
from tests.support.probe_world import RIGHT, WRONG, World


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_a_layout_that_falsifies_is_found_by_a_router_that_has_just_started() -> None:
    async def scenario() -> None:
        world = World()
        await world.look(2)
        world.wrong_in("TP")
        world.groups["d0"].switch("TP")
        world.restart_router()
        await world.look()
        told = world.told()
        assert told["last"]["verdict"] == "DRIFT"
        assert told["reference"]["groups"][1]["layout"] == "DP"
        assert world.pinned == {"d0": "DP"}

    run(scenario)


def test_where_groups_have_restarted_with_it_nothing_is_left_to_compare_with() -> None:
    async def scenario() -> None:
        world = World()
        await world.look(2)
        world.answers = lambda _: WRONG
        for group in world.groups.values():
            group.restart("DP")
        world.restart_router()
        await world.look()
        assert world.told()["last"]["verdict"] == "REFERENCE"
        assert world.pinned == {}

    run(scenario)


def test_one_group_that_has_lived_on_is_enough_and_hands_it_to_the_others() -> None:
    async def scenario() -> None:
        world = World(2, 2)
        await world.look(4)
        for name in ("p0", "d0", "p1"):
            world.groups[name].restart("DP")
        world.answers = lambda _: WRONG
        world.restart_router()
        await world.look()
        assert world.watch.to_json()["alarms"] == 1
        assert len({group.texts["probes"] for group in world.groups.values()}) == 1

    run(scenario)


def test_what_was_reset_is_not_brought_back_by_a_group_that_was_away() -> None:
    async def scenario() -> None:
        world = World(1, 2)
        await world.look(3)
        world.groups["d1"].control_error = Unavailable("away")
        await world.look()
        world.watch.reset()
        world.answers = lambda _: WRONG
        await world.look(2)
        assert world.told()["last"]["verdict"] == "REFERENCE"
        world.restart_router()
        world.groups["d1"].control_error = None
        await world.look(4)
        assert world.watch.to_json()["alarms"] == 0
        texts = {group.texts["probes"] for group in world.groups.values()}
        assert [reference.time_s for reference in memory_from(texts.pop()).references] == [1005.0]
        assert texts == set()

    run(scenario)


def test_a_reset_while_groups_are_asked_stays_one() -> None:
    async def scenario() -> None:
        world = World()
        await world.look(2)
        world.groups["d0"].restart("DP")
        await world.registry.refresh("d0")
        looking = asyncio.create_task(world.watch.look())
        await asyncio.sleep(0)
        world.now += 1.0
        world.watch.reset()
        world.answers = lambda _: WRONG
        await looking
        assert world.groups["d0"].texts == {}
        await world.look(2)
        assert world.told()["last"]["verdict"] == "REFERENCE"
        assert world.watch.to_json()["alarms"] == 0
        kept = memory_from(world.groups["p0"].texts["probes"])
        assert {one.mark.incarnation for one in kept.good if one.mark.group == "d0"} == {"1+"}

    run(scenario)


def test_groups_whose_version_keeps_nothing_are_asked_once_a_life_and_probed_all_the_same() -> None:
    async def scenario() -> None:
        world = World()
        groups = world.groups.values()
        for group in groups:
            group.keeps = False
        await world.look(3)
        world.now += 100.0
        await world.look(2)
        assert world.told()["checks"] == 1
        assert [(group.told, group.handed) for group in groups] == [(1, 0), (1, 0)]
        for group in groups:
            group.keeps = True
            group.restart("DP")
        await world.look(2)
        assert all(memory_from(group.texts["probes"]).references for group in groups)

    run(scenario)


def test_no_first_answers_become_a_reference_before_a_group_that_answers_has_told_what_it_keeps() -> None:
    async def scenario() -> None:
        world = World()
        await world.look(2)
        world.groups["p0"].restart("DP")
        decode = world.groups["d0"]
        text = decode.texts["probes"]
        decode.kept_error = DeadlineExceeded("late")
        world.answers = lambda _: WRONG
        world.restart_router()
        await world.look(3)
        assert world.told()["waits_for"].startswith("d0 cannot be asked what it keeps")
        assert decode.texts["probes"] == text
        assert world.told()["reference"] is None
        told = decode.told
        decode.kept_error = None
        await world.look()
        assert decode.told == told, "asked again after a while only"
        world.now += 10.0
        await world.look()
        assert world.told()["last"]["verdict"] == "DRIFT"
        await world.look()
        references = {memory_from(group.texts["probes"]).references for group in world.groups.values()}
        assert [[one.answers for one in found] for found in references] == [[RIGHT]]

    run(scenario)


def test_what_could_not_be_handed_over_is_tried_again_after_a_while() -> None:
    async def scenario() -> None:
        world = World()
        groups = world.groups.values()
        for group in groups:
            group.keep_error = Unavailable("reset")
        await world.look(3)
        for group in groups:
            group.keep_error = None
        await world.look(3)
        assert [group.handed for group in groups] == [0, 0]
        world.now += 10.0
        await world.look(3)
        assert [group.handed for group in groups] == [1, 1], "and no more often than it changes"

    run(scenario)


def test_nothing_is_handed_to_a_group_that_has_not_just_told_what_it_keeps() -> None:
    async def scenario() -> None:
        world = World()
        await world.look()
        world.groups["d0"].kept_error = Unavailable("reset")
        await world.look(2)
        assert [group.handed for group in world.groups.values()] == [1, 0]

    run(scenario)


def test_a_group_without_room_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World()
        world.groups["d0"].keep_error = InvalidRequest("at most 2097152 characters")
        await world.look(3)
        world.now += 100.0
        await world.look(3)

    run(scenario)
    told = [record for record in caplog.records if "refuses to keep" in record.message]
    assert [record.levelname for record in told] == ["WARNING"]


def test_a_reset_at_one_router_is_not_undone_by_another_one() -> None:
    async def scenario() -> None:
        world = World()
        await world.look(2)
        one = world.registry, world.watch
        world.restart_router()
        other = world.registry, world.watch
        await world.look(2)
        world.registry, world.watch = one
        world.watch.reset()
        world.answers = lambda _: WRONG
        await world.look(2)
        assert world.told()["last"]["verdict"] == "REFERENCE"
        world.registry, world.watch = other
        world.groups["d0"].switch("TP")
        await world.look(2)
        assert world.told()["last"]["verdict"] == "SAME"
        assert world.watch.to_json()["alarms"] == 0
        for group in world.groups.values():
            memory = memory_from(group.texts["probes"])
            assert memory.reset_s == 1004.0
            assert [reference.answers for reference in memory.references] == [WRONG]

    run(scenario)


def test_two_routers_do_not_hand_over_their_marks_in_turns() -> None:
    async def scenario() -> None:
        world = World()
        await world.look(3)
        one = world.registry, world.watch
        world.groups["d0"].switch("TP")
        world.restart_router()
        other = world.registry, world.watch
        await world.look(3)
        handed = [group.handed for group in world.groups.values()]
        assert memory_from(world.groups["d0"].texts["probes"]).good[0].mark.layout == "TP"
        world.obstacles["p0", "d0"] = "requests wait"
        for world.registry, world.watch in (one, other, one, other):
            world.now += 60.0
            await world.look(2)
        assert [group.handed for group in world.groups.values()] == handed

    run(scenario)


def test_marks_of_a_group_that_has_gone_are_not_brought_back_by_the_others() -> None:
    async def scenario() -> None:
        world = World(1, 2)
        await world.look(4)
        world.groups["d1"].control_error = Unavailable("away")
        world.now += 700.0
        await world.look(4)
        kept = memory_from(world.groups["p0"].texts["probes"])
        assert {one.mark.group for one in kept.good} == {"p0", "d0"}

    run(scenario)


def test_of_many_changes_of_weights_the_newest_references_and_the_served_one_are_kept() -> None:
    async def scenario() -> None:
        world = World()
        for change in range(40):
            for group in world.groups.values():
                group.restart("DP")
                group.abi = common_pb2.KvAbi(version="1", dtype="fp32", model=f"m{change}")
            await world.look(3)
            if change == 0:
                sizes = [len(group.texts["probes"]) for group in world.groups.values()]
        for group, first in zip(world.groups.values(), sizes, strict=True):
            memory = memory_from(group.texts["probes"])
            models = [reference.mark.model for reference in memory.references]
            assert models == ["m35", "m36", "m37", "m38", "m39"]
            assert {one.model for one in memory.good} == {*models}
            assert len(group.texts["probes"]) < 6 * first

    run(scenario)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 2, "memory": {}}', '{"format": 1, "memory": {"x": 1}}']
)
def test_what_cannot_be_read_is_written_anew(text: str) -> None:
    with pytest.raises(ConfigError):
        memory_from(text)

    async def scenario() -> None:
        world = World()
        for group in world.groups.values():
            group.texts["probes"] = text
        await world.look(2)
        assert world.told()["last"]["verdict"] == "REFERENCE"
        assert memory_from(world.groups["d0"].texts["probes"]).references[0].answers == RIGHT

    run(scenario)
