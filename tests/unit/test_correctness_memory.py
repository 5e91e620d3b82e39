"""A router that starts anew knows the references of the one before, from the groups that live on."""

import asyncio
import json
import math
from collections.abc import Callable, Coroutine
from itertools import permutations
from typing import Any

import pytest

from splash_core.errors import ConfigError, InvalidRequest, Unavailable
from splash_core.leader.kept import MOST_KEPT, KeptTexts
from splash_core.policy.correctness import Said
from splash_core.policy.correctness_memory import GoodMark, ProbeMemory, memory_from, recalled
from splash_core.policy.correctness_notes import GroupMark, PairMark, ProbeNotes, Round
from splash_core.policy.snapshot import Phase
from tests.support.probe_world import RIGHT, WRONG, World


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def mark(group: str, *, epoch: int = 0) -> GroupMark:
    return GroupMark(group=group, phase=Phase.DECODE, incarnation="i", epoch=epoch, layout="DP")


def answered(time_s: float, *, model: str = "m", logprob: float = -1.0) -> Round:
    pair = PairMark(model=model, dtype="fp32", prompts=((1, 2),), prefill=mark("p"), decode=mark("d"))
    said = (Said(token=3, logprob=logprob, margin=math.inf),)
    return Round(time_s=time_s, mark=pair, answers=(said,))


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
        await world.look()
        assert world.told()["last"]["verdict"] == "REFERENCE"
        assert world.watch.to_json()["alarms"] == 0

    run(scenario)


def test_groups_that_keep_nothing_are_probed_all_the_same() -> None:
    async def scenario() -> None:
        world = World()
        for group in world.groups.values():
            group.keep_error = Unavailable("UNIMPLEMENTED")
        await world.look(3)
        assert world.told()["checks"] == 1
        for group in world.groups.values():
            group.keep_error = None
        await world.look(3)
        assert [group.handed for group in world.groups.values()] == [0, 0], "tried again after a while only"
        world.now += 10.0
        await world.look(2)
        assert [group.handed for group in world.groups.values()] == [1, 1], (
            "and no more often than it changes"
        )

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


def test_a_memory_survives_its_text() -> None:
    good = GoodMark(model="m", dtype="fp32", mark=mark("d", epoch=3))
    memory = ProbeMemory(reset_s=1.5, references=(answered(2.0, logprob=-0.1),), good=(good,))
    assert memory_from(memory.to_text()) == memory
    json.loads(memory.to_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_in_whatever_order_memories_are_heard_they_come_to_the_same() -> None:
    memories = (
        ProbeMemory(references=(answered(1.0), answered(9.0, model="n"))),
        ProbeMemory(
            reset_s=5.0,
            references=(answered(7.0),),
            good=(GoodMark(model="m", dtype="fp32", mark=mark("d")),),
        ),
        ProbeMemory(reset_s=5.0, references=(answered(6.0), answered(8.0, model="n"))),
    )
    found: list[tuple[ProbeNotes, float]] = []
    for order in permutations(memories):
        notes, reset_s = ProbeNotes(good={("d", "m", "fp32"): mark("d", epoch=7)}), 0.0
        for memory in order:
            notes, reset_s = recalled(notes, [memory], reset_s=reset_s)
        found += [(notes, reset_s), recalled(ProbeNotes(), order, reset_s=0.0)]
    assert {reset_s for _, reset_s in found} == {5.0}
    for notes, _ in found:
        assert [(one.time_s, one.mark.model) for one in notes.references] == [(6.0, "m"), (8.0, "n")]
        assert notes.good == {("d", "m", "fp32"): mark("d")}


def test_what_a_router_saw_itself_is_known_better_than_what_was_kept() -> None:
    own = ProbeNotes(good={("d", "m", "fp32"): mark("d", epoch=7)})
    kept = ProbeMemory(good=(GoodMark(model="m", dtype="fp32", mark=mark("d")),))
    notes, _ = recalled(own, [kept], reset_s=0.0)
    assert notes.good == own.good


def test_a_group_keeps_no_more_than_it_has_room_for() -> None:
    texts = KeptTexts()
    texts.keep("a", "x")
    with pytest.raises(InvalidRequest, match=f"'b' would make it {MOST_KEPT + 1} characters"):
        texts.keep("b", "y" * MOST_KEPT)
    assert (texts.get("a"), texts.get("b")) == ("x", "")
    texts.keep("a", "")
    texts.keep("b", "y" * MOST_KEPT)
    assert texts.get("a") == ""
