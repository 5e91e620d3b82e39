"""Background work that dies is known by name to its owner, and work that was asked to end is not."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from splash_core.errors import Unavailable
from splash_core.obs.vitals import Died, VitalTasks, VitalThreads

WITHIN_S = 60


def fail() -> None:
    raise ValueError("broken")


@pytest.mark.parametrize(
    ("work", "cause"), [(fail, "ValueError: broken"), (lambda: None, "it returned unasked")]
)
def test_a_kept_thread_that_ends_is_its_owner_s_death(work: Callable[[], None], cause: str) -> None:
    told: list[Died] = []
    vitals = VitalThreads(told.append)
    vitals.check()
    vitals.keep("copy worker", work).join(WITHIN_S)
    with pytest.raises(Died, match=f"its copy worker has ended, which it cannot do without: {cause}"):
        vitals.check()
    assert told == [vitals.death]


def test_a_kept_thread_that_was_released_may_end_but_not_fail() -> None:
    vitals, asked = VitalThreads(), threading.Event()

    def failing() -> None:
        asked.wait()
        fail()

    quiet = vitals.keep("server", lambda: (asked.wait(), None)[1])
    vitals.release(quiet)
    asked.set()
    quiet.join(WITHIN_S)
    vitals.check()
    asked.clear()
    loud = vitals.keep("worker", failing)
    vitals.release(loud)
    asked.set()
    loud.join(WITHIN_S)
    with pytest.raises(Died, match="worker"):
        vitals.check()


def test_an_errand_may_end_by_itself_and_the_first_death_stays() -> None:
    vitals = VitalThreads()
    vitals.errand("session", lambda: None).join(WITHIN_S)
    vitals.check()
    vitals.errand("first", fail).join(WITHIN_S)
    vitals.errand("second", fail).join(WITHIN_S)
    with pytest.raises(Died, match="its first has ended"):
        vitals.check()


def test_a_death_that_cannot_be_told_is_still_known() -> None:
    def deaf(death: Died) -> None:
        raise Unavailable(str(death))

    vitals = VitalThreads(deaf)
    vitals.keep("worker", fail).join(WITHIN_S)
    with pytest.raises(Died, match="worker"):
        vitals.check()


async def broken() -> None:
    raise ValueError("broken")


async def cancelled_by_nobody() -> None:
    raise asyncio.CancelledError


async def done() -> None:
    """Ends at once."""


def in_loop(scenario: Callable[[VitalTasks], Coroutine[Any, Any, None]]) -> list[Died]:
    told: list[Died] = []

    async def main() -> None:
        await scenario(VitalTasks(told.append))

    asyncio.run(main())
    return told


@pytest.mark.parametrize(
    ("work", "cause"),
    [
        (broken, "ValueError: broken"),
        (cancelled_by_nobody, "CancelledError"),
        (done, "it returned unasked"),
    ],
)
def test_a_kept_task_that_ends_is_its_owner_s_death(
    work: Callable[[], Coroutine[Any, Any, None]], cause: str
) -> None:
    async def scenario(vitals: VitalTasks) -> None:
        vitals.keep("sweep", work())
        await asyncio.wait_for(vitals.wait_death(), WITHIN_S)
        with pytest.raises(Died, match=f"its sweep has ended, .*: {cause}"):
            vitals.check()

    assert len(in_loop(scenario)) == 1


def test_tasks_that_were_asked_to_end_are_no_death() -> None:
    async def scenario(vitals: VitalTasks) -> None:
        asked = asyncio.Event()

        async def serve() -> None:
            await asked.wait()

        cancelled, released = vitals.keep("poll", serve()), vitals.keep("gateway", serve())
        errand, given_up = vitals.errand("end", done()), vitals.errand("list", serve())
        await asyncio.sleep(0)
        cancelled.cancel()
        given_up.cancel()
        vitals.release(released)
        asked.set()
        await asyncio.gather(cancelled, released, errand, given_up, return_exceptions=True)
        await asyncio.sleep(0)
        vitals.check()

    assert in_loop(scenario) == []


def test_an_errand_that_fails_is_its_owner_s_death() -> None:
    async def scenario(vitals: VitalTasks) -> None:
        vitals.errand("end of a handoff", broken())
        await asyncio.wait_for(vitals.wait_death(), WITHIN_S)
        with pytest.raises(Died, match="its end of a handoff has ended"):
            vitals.check()

    assert len(in_loop(scenario)) == 1
