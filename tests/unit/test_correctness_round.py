"""Whose requests wait in a group while probes are asked: their own, or users'."""

import asyncio

from services.router.correctness_round import Asking, Questioner
from services.router.dispatch import Dispatcher, DispatchSettings
from services.router.registry import Registry
from splash_core.dispatch.admission import Demand, QueueLimits
from tests.support.stub_worker import StubWorker

PROMPTS = ((1, 2), (3, 4))


class World:
    """A pair of groups, two probes in them, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.prefill, self.decode = StubWorker("p", "prefill"), StubWorker("d", "decode")
        self.registry = Registry(
            {"prefill": [self.prefill], "decode": [self.decode]},
            clock=lambda: self.now,
            poll_interval_s=60.0,
            poll_timeout_s=1.0,
        )
        limits = QueueLimits(requests=1, prompt_tokens=1)
        settings = DispatchSettings(limits=limits, expected_output_tokens=1)
        dispatcher = Dispatcher(self.registry, settings, clock=lambda: self.now)
        self.questioner = Questioner(registry=self.registry, dispatcher=dispatcher, new_id=lambda: "x")
        self.asking = Asking()

    def send(self) -> None:
        demand = Demand(prompt_tokens=2, output_tokens=1, required_output_tokens=1)
        for _ in PROMPTS:
            self.asking.charges.append(self.registry.charge(prefill="p", decode="d", demand=demand))

    async def obstacle(self, *, prefill: int = 0, decode: int = 0) -> str | None:
        """While so many wait in the groups."""
        self.now += 1.0
        self.prefill.waiting, self.decode.waiting = prefill, decode
        for address in ("p", "d"):
            await self.registry.refresh(address)
        self.now += 1.0
        (pair,) = self.registry.pairs()
        return self.questioner.obstacle(pair, PROMPTS, self.asking)


def test_only_its_own_requests_that_can_still_wait_there_are_counted_out() -> None:
    async def scenario() -> None:
        world = World()
        world.send()
        assert await world.obstacle(decode=2) is None
        assert await world.obstacle(decode=3) == "d is saturated: 1 requests wait"
        assert await world.obstacle(prefill=1) == "p is saturated: 1 requests wait"
        for charge in world.asking.charges:
            world.registry.leased(charge)
        assert await world.obstacle(prefill=2) is None
        assert await world.obstacle(prefill=3) == "p is saturated: 1 requests wait"
        assert await world.obstacle(decode=1) == "d is saturated: 1 requests wait"
        world.registry.drawn(world.asking.charges[0])
        assert await world.obstacle(prefill=1) is None
        assert await world.obstacle(prefill=2) == "p is saturated: 1 requests wait"

    asyncio.run(scenario())


def test_what_a_group_told_before_a_request_got_on_may_count_it() -> None:
    async def scenario() -> None:
        world = World()
        world.send()
        assert await world.obstacle(decode=2) is None
        (pair,) = world.registry.pairs()
        for charge in world.asking.charges:
            world.registry.leased(charge)
        assert world.questioner.obstacle(pair, PROMPTS, world.asking) is None
        assert await world.obstacle(prefill=2) is None
        for charge in world.asking.charges:
            world.registry.drawn(charge)
            world.registry.discharge(charge)
        assert world.questioner.obstacle(pair, PROMPTS, world.asking) is None

    asyncio.run(scenario())
