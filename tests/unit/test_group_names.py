"""Two groups of one name: the second is refused, and everybody who asks is told so."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.router.admin import cluster_entry
from services.router.health import gauges
from services.router.registry import Registry
from services.router.weights import RoutedModel
from splash_core.errors import NotFound, Unavailable
from splash_core.pb import common_pb2
from tests.support.stub_worker import StubWorker


class World:
    """A prefill group, and two decode groups that are both called d."""

    def __init__(self) -> None:
        self.workers = {
            name: StubWorker(name, "prefill" if name == "p" else "decode") for name in ("p", "a", "b")
        }
        self.workers["a"].group = self.workers["b"].group = "d"
        self.registry = Registry(
            {"prefill": [self.workers["p"]], "decode": [self.workers["a"], self.workers["b"]]},
            clock=lambda: 1.0,
            poll_interval_s=60.0,
            poll_timeout_s=1.0,
            served=RoutedModel(name="", fingerprint=""),
        )

    async def hear(self, names: str = "pab") -> None:
        for name in names:
            await self.registry.refresh(name)

    @property
    def served(self) -> list[str]:
        return [pair.decode.address for pair in self.registry.pairs()]


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(World()))


def test_the_second_of_two_groups_of_one_name_is_refused_with_both_addresses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        with caplog.at_level(logging.ERROR, logger="splash.router"):
            for _ in range(3):
                await world.hear("pba")
        assert world.served == ["b"]
        entry = cluster_entry(world.registry.record("a"))
        assert entry["group"] == "d at a"
        assert entry["cause"].startswith("the group at a is called 'd', as the one at b that was here before")
        assert "another --group" in entry["cause"]
        assert cluster_entry(world.registry.record("b"))["cause"] is None
        assert [record.message for record in caplog.records] == ["group refused"]
        assert world.registry.find("decode", "d")[1].address == "b"

    run(scenario)


def test_a_prefill_group_may_not_have_a_decode_groups_name_either() -> None:
    async def scenario(world: World) -> None:
        world.workers["p"].group = "d"
        await world.hear("abp")
        assert world.registry.record("p").clash is not None
        with pytest.raises(NotFound, match="d at p"):
            world.registry.find("prefill", "d")

    run(scenario)


def test_another_name_ends_it() -> None:
    async def scenario(world: World) -> None:
        await world.hear()
        world.workers["b"].group = "e"
        world.workers["b"].restart("DP")
        await world.hear()
        assert world.served == ["a", "b"]

    run(scenario)


def test_a_group_that_cannot_be_reached_loses_its_name_to_one_that_answers() -> None:
    async def scenario(world: World) -> None:
        await world.hear()
        world.workers["a"].control_error = Unavailable("connection refused")
        await world.hear()
        assert world.served == ["b"]
        assert [record.label for record in world.registry.records("decode")] == ["d at a", "d"]
        world.workers["a"].control_error = None
        await world.hear()
        assert world.served == ["b"]
        assert world.registry.record("a").clash is not None

    run(scenario)


@pytest.mark.parametrize("state", ["draining", "failed"])
def test_a_group_that_leaves_gives_its_name_to_the_one_that_has_come(state: str) -> None:
    async def scenario(world: World) -> None:
        await world.hear()
        assert world.served == ["a"]
        world.workers["a"].state_name = state
        await world.hear()
        assert world.served == ["b"]
        assert world.registry.record("b").clash is None
        await world.hear()
        assert world.registry.record("a").clash is not None, "of two, one has the name"

    run(scenario)


def test_a_group_that_never_can_serve_takes_no_name_from_one_that_can() -> None:
    async def scenario(world: World) -> None:
        world.workers["a"].phase = "prefill"
        await world.hear("pab")
        assert world.served == ["b"]
        assert world.registry.record("b").clash is None
        assert world.registry.record("a").clash is not None
        world.workers["b"].control_error = Unavailable("connection refused")
        await world.hear()
        world.workers["b"].control_error = None
        await world.hear()
        assert world.served == ["b"]

    run(scenario)


def test_an_address_that_a_group_has_left_is_no_reason_to_restart_the_router() -> None:
    async def scenario(world: World) -> None:
        await world.hear()
        world.workers["a"].control_error = Unavailable("connection refused")
        await world.hear()
        assert world.registry.record("a").stalled(now_s=1e6, limit_s=10.0) is None

    run(scenario)


def test_no_two_series_have_the_same_labels() -> None:
    async def scenario(world: World) -> None:
        await world.hear()
        idle = SimpleNamespace(waiting=SimpleNamespace(requests=0, prompt_tokens=0), running=0)
        series = [sample[:2] for sample in gauges(world.registry, cast("Any", idle))]
        assert len(series) == len(set(series))

    run(scenario)


@pytest.mark.parametrize("odd", [SimpleNamespace(), SimpleNamespace(abi=common_pb2.KvAbi())])
def test_a_description_that_cannot_be_understood_is_that_group_s_trouble_alone(
    odd: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def describe(**_: float) -> SimpleNamespace:
        return odd

    async def scenario(world: World) -> None:
        monkeypatch.setattr(world.workers["b"], "describe", describe)
        await world.hear()
        trouble = world.registry.record("b").trouble
        assert trouble is not None
        assert trouble.startswith("its answer cannot be understood (AttributeError")
        assert world.served == ["a"]
        monkeypatch.undo()
        world.workers["b"].group = "e"
        await world.hear()
        assert world.served == ["a", "b"]

    run(scenario)
