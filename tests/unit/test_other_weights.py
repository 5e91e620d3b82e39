"""A group that comes back with other weights: who asks reads both fingerprints and the remedy."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from services.commands.canary import probes_text
from services.router.weights import RoutedModel, why_out
from splash_core.leader.fingerprint import short_fingerprint
from splash_core.pb import common_pb2
from tests.support.probe_world import World

OLD, NEW = "0123456789abcdef-00112233445566aa", "0123456789abcdef-ffeeddccbbaa9988"
SHORT_OLD, SHORT_NEW = "01234567-00112233", "01234567-ffeeddcc"


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def serve(world: World, fingerprint: str, *groups: str) -> None:
    """Restart groups with weights."""
    for name in groups:
        group = world.groups[name]
        group.restart(group.layout)
        group.abi = common_pb2.KvAbi(version="1", dtype="fp32", model=fingerprint, model_name="m")


def outs(world: World) -> dict[str, str]:
    return {entry["group"]: entry["reason"] for entry in world.watch.to_json()["out"]}


def test_fingerprints_are_read_by_their_beginnings() -> None:
    assert (short_fingerprint(OLD), short_fingerprint("0123456789abcdef")) == (SHORT_OLD, "01234567")
    assert short_fingerprint("") == "none"


def test_a_group_that_the_router_refuses_is_out_and_the_reference_left() -> None:
    async def scenario() -> None:
        world = World(served=RoutedModel(name="model", fingerprint=OLD))
        serve(world, OLD, "p0", "d0")
        await world.look(2)
        assert (outs(world), world.told()["reference_left"]) == ({}, None)
        serve(world, NEW, "d0")
        await world.look(2)
        reason = outs(world)["d0"]
        assert all(
            word in reason for word in (SHORT_OLD, SHORT_NEW, "other weights of one", "restart the group")
        )
        told = world.told()
        assert told["reference"]["model"] == OLD
        left = told["reference_left"]
        assert f"reference of fingerprint {SHORT_OLD} does not apply: d0 serves {SHORT_NEW}" in left
        assert "restart d0 with the --model of before" in left
        text = probes_text(world.watch.to_json())
        assert text.startswith(f"d0 is out: {reason}\n")
        assert f"reference (fingerprint {SHORT_OLD}): p0 in DP" in text
        assert left in text
        serve(world, OLD, "d0")
        await world.look(2)
        assert (outs(world), world.told()["reference_left"]) == ({}, None)
        assert world.told()["last"]["verdict"] == "SAME"

    run(scenario)


def test_two_groups_of_unlike_weights_are_both_out_and_name_each_other() -> None:
    async def scenario() -> None:
        world = World()
        serve(world, OLD, "p0", "d0")
        await world.look(2)
        serve(world, NEW, "d0")
        await world.look(2)
        told = world.watch.to_json()
        assert told["pairs"] == []
        assert f"serves fingerprint {SHORT_OLD}, but d0 {SHORT_NEW}" in outs(world)["p0"]
        assert f"serves fingerprint {SHORT_NEW}, but p0 {SHORT_OLD}" in outs(world)["d0"]
        assert "restart the one that is wrong with the other's --model" in probes_text(told)
        records = world.registry.records()
        assert [why_out(record, records) for record in records] == [
            outs(world)[name] for name in ("p0", "d0")
        ]

    run(scenario)


def test_when_all_have_other_weights_it_is_told_what_became_of_the_reference_until_there_is_a_new_one() -> (
    None
):
    async def scenario() -> None:
        world = World()
        serve(world, OLD, "p0", "d0")
        await world.look(2)
        serve(world, NEW, "p0", "d0")
        world.obstacles["p0", "d0"] = "requests wait"
        await world.look(2)
        told = world.told()
        assert f"does not apply: p0 serves {SHORT_NEW} and d0 serves {SHORT_NEW}" in told["reference_left"]
        world.obstacles.clear()
        await world.look(2)
        told = world.told()
        assert (told["last"]["verdict"], told["reference"]["model"]) == ("REFERENCE", NEW)
        assert (told["reference_left"], outs(world)) == (None, {})

    run(scenario)


def test_another_difference_is_told_by_its_field_and_a_third_group_that_fits_is_enough() -> None:
    async def scenario() -> None:
        world = World(1, 2)
        world.groups["d1"].abi = common_pb2.KvAbi(version="1", dtype="bf16")
        world.groups["d1"].restart("DP")
        await world.look(2)
        assert list(outs(world)) == ["d1"]
        assert outs(world)["d1"] == "does not fit p0: dtype: prefill has 'fp32', decode has 'bf16'"

    run(scenario)
