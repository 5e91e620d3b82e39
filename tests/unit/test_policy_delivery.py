"""Versions reach groups in order, one call at a time; who is away or slow does not hold the others up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from services.router.metrics import Metrics
from services.router.policy_delivery import PolicyDelivery
from services.router.policy_keeper import PolicyKeeper
from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.errors import DeadlineExceeded, SplashError, Unavailable
from splash_core.pb import control_pb2
from splash_core.policy.document import parse_document


class Group:
    """A leader that takes versions when it is let."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.error: SplashError | None = None
        self.taken: list[int] = []
        self.calls = 0
        self.most_at_once = 0
        self._under_way = 0

    async def set_policy(
        self, request: control_pb2.SetPolicyRequest, *, timeout_s: float
    ) -> control_pb2.SetPolicyResult:
        del timeout_s
        self.calls += 1
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            await self.open.wait()
            if self.error is not None:
                raise self.error
            self.taken.append(request.version)
        finally:
            self._under_way -= 1
        return control_pb2.SetPolicyResult(policy=control_pb2.PolicyState(version=request.version))


class World:
    """Two groups, and a registry that knows what they were at the last look."""

    def __init__(self) -> None:
        self.now = 0.0
        self.workers = {"p": Group(), "d": Group()}
        self.states = {
            name: control_pb2.GroupState(group=name, state="ready", incarnation="1") for name in self.workers
        }
        self.errors: dict[str, str] = {}
        self.suspected: list[str] = []
        registry = cast("Registry", self)
        self.keeper = PolicyKeeper(registry, Metrics(), wall=lambda: 0.0)
        self.delivery = PolicyDelivery(self.keeper, registry, clock=lambda: self.now, tries=lambda _: False)

    def record(self, address: str) -> GroupRecord:
        return GroupRecord(
            address=address,
            phase="decode",
            state=self.states[address],
            error=self.errors.get(address),
            asked_at_s=self.now - 1,
        )

    def records(self) -> list[GroupRecord]:
        return [self.record(address) for address in self.workers]

    def suspect(self, address: str) -> None:
        self.suspected.append(address)

    def version(self, margin: int) -> None:
        self.keeper.apply(parse_document(f"[all]\nmargin = {margin}"), source="test")

    def in_force(self) -> list[int]:
        orders = [self.delivery.in_force(record) for record in self.records()]
        return [order.number for order in orders if order is not None]

    def troubles(self) -> list[str | None]:
        return [self.delivery.trouble(record) for record in self.records()]


def _in_loop(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        await scenario(world)
        await world.delivery.stop()

    asyncio.run(run())


def test_without_a_version_nobody_is_called() -> None:
    async def scenario(world: World) -> None:
        await world.delivery.settle()
        assert [group.calls for group in world.workers.values()] == [0, 0]
        assert world.troubles() == [None, None]

    _in_loop(scenario)


def test_all_get_it_once_and_their_state_is_asked_for_soon() -> None:
    async def scenario(world: World) -> None:
        world.version(1)
        await world.delivery.settle()
        await world.delivery.settle()
        assert [group.taken for group in world.workers.values()] == [[1], [1]]
        assert (world.in_force(), world.troubles()) == ([1, 1], [None, None])
        assert sorted(world.suspected) == ["d", "p"]

    _in_loop(scenario)


def test_a_slow_group_holds_nobody_up_and_goes_on_to_the_newest() -> None:
    async def scenario(world: World) -> None:
        world.workers["d"].open.clear()
        world.version(1)
        world.delivery.deliver()
        for margin in (2, 3):
            await asyncio.sleep(0)
            world.version(margin)
            for _ in range(20):
                world.delivery.deliver()
                await asyncio.sleep(0)
        assert world.workers["p"].taken[-1] == 3
        assert world.troubles() == [None, "has not taken it yet"]
        world.workers["d"].open.set()
        await world.delivery.settle()
        assert world.workers["d"].taken == [1, 3]
        assert world.in_force() == [3, 3]
        assert [group.most_at_once for group in world.workers.values()] == [1, 1]

    _in_loop(scenario)


def test_who_does_not_answer_is_asked_again_and_shown() -> None:
    async def scenario(world: World) -> None:
        for error in (Unavailable("d is not reachable"), DeadlineExceeded("d did not answer in time")):
            world.workers["d"].error = error
            world.version(1)
            await world.delivery.settle()
            assert world.troubles() == [None, str(error)]
        world.workers["d"].error = None
        await world.delivery.settle()
        assert world.workers["d"].calls == 3
        assert world.troubles() == [None, None]

    _in_loop(scenario)


def test_groups_that_start_or_are_away_are_left_until_they_are_there() -> None:
    async def scenario(world: World) -> None:
        world.states["p"].state = "starting"
        world.errors["d"] = "d is not reachable"
        world.version(1)
        await world.delivery.settle()
        assert [group.calls for group in world.workers.values()] == [0, 0]
        assert world.troubles() == ["has not taken it yet", "d is not reachable"]
        world.states["p"].state = "draining"
        world.errors.clear()
        await world.delivery.settle()
        assert world.in_force() == [1, 1]

    _in_loop(scenario)


def test_a_state_that_was_asked_for_later_counts_more_than_an_old_answer() -> None:
    async def scenario(world: World) -> None:
        world.version(1)
        await world.delivery.settle()
        world.now = 10.0
        # As if another router had set its own.
        world.states["d"].policy.version = 9
        assert world.in_force() == [0, 9]
        world.states["p"].incarnation = "2"
        await world.delivery.settle()
        assert world.workers["p"].taken == [1, 1]

    _in_loop(scenario)
