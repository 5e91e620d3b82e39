"""The queue in front of a decode group: order, bounds, and nobody's grant is lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from splash_core.errors import ContextTooLong, GroupFailed, Overloaded
from splash_core.ids import Incarnation, LeaseId, RequestId, SeqId
from splash_core.leader.waiting import Arrival, WaitingRoom
from splash_core.scheduling.leases import Grant
from splash_core.spec.request import SamplingParams


class Pages:
    """Stands for a scheduler: grants while there is room."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.granted: list[str] = []
        self.returned: list[str] = []

    def reserve(self, arrival: Arrival) -> Grant | None:
        if len(arrival.prompt) > 100:
            raise ContextTooLong("too long")
        if self.room == 0:
            return None
        self.room -= 1
        self.granted.append(arrival.request_id)
        return Grant(
            lease=LeaseId(arrival.request_id),
            seq=SeqId(len(self.granted)),
            attempt=1,
            incarnation=Incarnation("i"),
            pages=(),
        )

    def give_back(self, grant: Grant) -> None:
        self.room += 1
        self.returned.append(grant.lease)


def _room(pages: Pages, *, requests: int = 10, tokens: int = 100) -> WaitingRoom:
    return WaitingRoom(pages.reserve, pages.give_back, max_requests=requests, max_tokens=tokens)


def _arrival(name: str, length: int = 3, *, priority: int = 0, since: float = 0.0) -> Arrival:
    sampling = SamplingParams(priority=priority)
    return Arrival(request_id=RequestId(name), prompt=(1,) * length, sampling=sampling, since=since)


def _run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def _turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_first_come_first_served() -> None:
    async def scenario() -> None:
        pages = Pages(1)
        room = _room(pages)
        tasks = [asyncio.create_task(room.admit(_arrival(name))) for name in "abc"]
        await _turns()
        assert pages.granted == ["a"]
        assert [entry.prompt_tokens for entry in room.queued()] == [3, 3]
        pages.room = 2
        room.pump()
        await asyncio.gather(*tasks)
        assert pages.granted == ["a", "b", "c"]
        assert len(room) == 0

    _run(scenario())


def test_bounds_by_requests_and_by_tokens_but_an_empty_queue_takes_anything() -> None:
    async def scenario() -> None:
        room = _room(Pages(0), requests=2, tokens=50)
        tasks = [asyncio.create_task(room.admit(_arrival("a", 90)))]
        await _turns()
        with pytest.raises(Overloaded, match="50"):
            await room.admit(_arrival("b", 1))
        tasks[0].cancel()
        await _turns()
        tasks = [asyncio.create_task(room.admit(_arrival(name, 5))) for name in "cd"]
        await _turns()
        with pytest.raises(Overloaded, match="2 requests") as raised:
            await room.admit(_arrival("e", 1))
        assert raised.value.retry_after_s > 0
        for task in tasks:
            task.cancel()

    _run(scenario())


def test_a_request_that_can_never_fit_does_not_block_those_behind_it() -> None:
    async def scenario() -> None:
        pages = Pages(0)
        room = _room(pages, tokens=1000)
        first = asyncio.create_task(room.admit(_arrival("a")))
        await _turns()
        long = asyncio.create_task(room.admit(_arrival("long", 101)))
        last = asyncio.create_task(room.admit(_arrival("b")))
        await _turns()
        pages.room = 2
        room.pump()
        await first
        with pytest.raises(ContextTooLong):
            await long
        await last
        assert pages.granted == ["a", "b"]

    _run(scenario())


def test_a_waiter_cancelled_in_the_turn_of_its_grant_loses_nothing() -> None:
    async def scenario() -> None:
        pages = Pages(0)
        room = _room(pages)
        gone = asyncio.create_task(room.admit(_arrival("gone")))
        stays = asyncio.create_task(room.admit(_arrival("stays")))
        await _turns()
        gone.cancel()
        # Before the cancelled call runs again, pages come free.
        pages.room = 1
        room.pump()
        grant = await stays
        assert grant.lease == "stays"
        assert pages.room == 0
        with pytest.raises(asyncio.CancelledError):
            await gone

    _run(scenario())


def test_a_grant_whose_taker_leaves_before_it_wakes_is_given_back() -> None:
    async def scenario() -> None:
        pages = Pages(0)
        room = _room(pages)
        task = asyncio.create_task(room.admit(_arrival("a")))
        await _turns()
        pages.room = 1
        room.pump()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pages.returned == ["a"]
        assert pages.room == 1

    _run(scenario())


def test_everybody_hears_when_the_group_fails() -> None:
    async def scenario() -> None:
        room = _room(Pages(0))
        tasks = [asyncio.create_task(room.admit(_arrival(name))) for name in "ab"]
        await _turns()
        tasks[0].cancel()
        room.fail(GroupFailed("rank 1 died"))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        with pytest.raises(GroupFailed, match="rank 1"):
            await tasks[1]

    _run(scenario())


def test_a_higher_priority_goes_first_but_not_before_who_has_waited_long() -> None:
    async def scenario() -> None:
        pages = Pages(room=0)
        room = _room(pages)
        arrivals = [
            _arrival("long ago", since=0.0),
            _arrival("later", since=6.0),
            _arrival("urgent", since=8.0, priority=-1),
            _arrival("can wait", since=8.0, priority=1),
        ]
        asked = [asyncio.create_task(room.admit(arrival)) for arrival in arrivals]
        await asyncio.sleep(0)
        pages.room = 4
        room.pump()
        await asyncio.gather(*asked)
        assert pages.granted == ["long ago", "urgent", "later", "can wait"]

    _run(scenario())
