"""Writers that die or fall silent: what they claimed is free only when our side has ended what they began."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from splash_core.errors import Conflict, GroupFailed
from splash_core.ids import Incarnation
from splash_core.leader.writers import DeathIsFence, Writer, WriterFence, WriterWatch
from splash_core.scheduling.writers import handoff_writer, handoffs_over
from tests.support.contacts import ELSEWHERE, ENDED

SILENCE_S = 5.0
W = Incarnation("w")
WRITER = Writer(group="prefill-0", incarnation=W, ranks=(ELSEWHERE, ELSEWHERE))
DEAD = replace(WRITER, ranks=(ENDED, ENDED))


@dataclass
class Ranks:
    """A fence whose ranks answer when the test says so."""

    silence_s: float = SILENCE_S
    asked: list[tuple[str, int]] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None

    async def end(self, writer: Incarnation, *, term: int) -> None:
        self.asked.append((writer, term))
        await self.answered.wait()
        if self.failure is not None:
            raise self.failure

    def owed(self, writer: Incarnation) -> str:
        return f"ranks 0, 1 to end the sessions of {writer}"


class Scene:
    """A decode group's leader with one claimed lease."""

    def __init__(self, fence: WriterFence) -> None:
        self.now = 100.0
        self.claims = {handoff_writer(W, 1)}
        self.freed: list[str] = []
        self.watch = WriterWatch(fence, writers=lambda: self.claims, free=self._free, clock=lambda: self.now)

    def _free(self, writer: Incarnation) -> None:
        self.freed.append(writer)
        self.claims.clear()

    async def pass_s(self, seconds: float) -> None:
        """Time passes, with looks as a leader takes them."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self.watch.look()
        await turns()


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def play(scenario: Callable[[Scene, Ranks], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        ranks = Ranks()
        scene = Scene(ranks)
        await scenario(scene, ranks)
        await scene.watch.close()

    asyncio.run(main())


def test_a_silent_writer_keeps_its_pages_until_all_ranks_have_fenced_it() -> None:
    async def scenario(scene: Scene, ranks: Ranks) -> None:
        assert scene.watch.claimed(WRITER) == 1
        await scene.pass_s(SILENCE_S)
        assert ranks.asked == []
        await scene.pass_s(1)
        assert ranks.asked == [(W, 1)]
        # However long the ranks take, time frees nothing.
        await scene.pass_s(50 * SILENCE_S)
        assert ranks.asked == [(W, 1)]
        assert scene.freed == []
        (wait,) = scene.watch.waits()
        assert wait.subject == "writer prefill-0 (w)"
        assert wait.waits_for == "ranks 0, 1 to end the sessions of w (nothing was heard of it for 5 s)"
        ranks.answered.set()
        await turns()
        assert scene.freed == [W]
        assert scene.watch.waits() == ()

    play(scenario)


def test_a_fenced_writer_may_claim_again_in_its_next_term_and_not_before() -> None:
    async def scenario(scene: Scene, ranks: Ranks) -> None:
        scene.watch.claimed(WRITER)
        await scene.pass_s(SILENCE_S + 1)
        with pytest.raises(Conflict, match="prefill-0 is being fenced, nothing was heard of it for 5 s"):
            scene.watch.check(W)
        scene.watch.check(Incarnation("another"))
        ranks.answered.set()
        await turns()
        scene.watch.check(W)
        scene.claims.add(handoff_writer(W, 2))
        assert scene.watch.claimed(WRITER) == 2
        await scene.pass_s(SILENCE_S + 1)
        assert ranks.asked == [(W, 1), (W, 2)]

    play(scenario)


def test_a_writer_that_is_heard_is_left_alone() -> None:
    async def scenario(scene: Scene, ranks: Ranks) -> None:
        scene.watch.claimed(WRITER)
        for _ in range(10):
            await scene.pass_s(SILENCE_S - 1)
            scene.watch.heard(W)
        assert ranks.asked == []
        assert "it is fenced when silent for 5 s" in scene.watch.waits()[0].waits_for

    play(scenario)


def test_a_leader_that_was_held_up_takes_that_for_nobody_s_silence() -> None:
    async def scenario(scene: Scene, ranks: Ranks) -> None:
        scene.watch.claimed(WRITER)
        scene.now += 1000
        await scene.pass_s(SILENCE_S - 2)
        assert ranks.asked == []

    play(scenario)


def test_a_dead_writer_s_bytes_may_be_on_the_way_so_its_pages_wait_for_the_ranks_too() -> None:
    async def scenario(scene: Scene, ranks: Ranks) -> None:
        scene.watch.claimed(DEAD)
        await scene.pass_s(0.5)
        assert ranks.asked == [(W, 1)]
        assert scene.freed == []
        assert "its processes have ended" in scene.watch.waits()[0].waits_for
        ranks.answered.set()
        await turns()
        assert scene.freed == [W]

    play(scenario)


def test_one_that_holds_nothing_is_not_fenced_and_is_forgotten_with_its_death() -> None:
    async def scenario(scene: Scene, ranks: Ranks) -> None:
        scene.watch.claimed(DEAD)
        scene.claims.clear()
        await scene.pass_s(10 * SILENCE_S)
        assert (ranks.asked, scene.freed) == ([], [])
        assert scene.watch._known == {}

    play(scenario)


def test_silence_counts_from_the_claim() -> None:
    async def scenario(scene: Scene, ranks: Ranks) -> None:
        scene.watch.claimed(WRITER)
        scene.claims.clear()
        await scene.pass_s(10 * SILENCE_S)
        scene.claims.add(handoff_writer(W, 2))
        scene.watch.claimed(WRITER)
        await scene.pass_s(SILENCE_S - 1)
        assert ranks.asked == []

    play(scenario)


def test_a_group_that_fails_frees_nothing() -> None:
    async def scenario(scene: Scene, ranks: Ranks) -> None:
        scene.watch.claimed(WRITER)
        await scene.pass_s(SILENCE_S + 1)
        ranks.failure = GroupFailed("rank 1 died")
        ranks.answered.set()
        await turns()
        assert scene.freed == []

    play(scenario)


def test_a_fence_that_failed_for_another_reason_is_tried_again() -> None:
    async def scenario(scene: Scene, ranks: Ranks) -> None:
        scene.watch.claimed(WRITER)
        ranks.failure = OSError("no more file descriptors")
        ranks.answered.set()
        await scene.pass_s(SILENCE_S + 1)
        assert scene.freed == []
        ranks.failure = None
        await scene.pass_s(1)
        assert scene.freed == [W]
        assert set(ranks.asked) == {(W, 1)}

    play(scenario)


def test_over_shared_memory_only_the_end_of_its_processes_frees_a_writer_s_pages() -> None:
    async def main() -> None:
        scene = Scene(DeathIsFence())
        assert math.isinf(DeathIsFence.silence_s)
        scene.watch.claimed(WRITER)
        await scene.pass_s(1000)
        assert scene.freed == []
        assert "proof that its processes have ended" in scene.watch.waits()[0].waits_for
        other = Scene(DeathIsFence())
        other.watch.claimed(DEAD)
        await other.pass_s(0.5)
        assert other.freed == [W]

    asyncio.run(main())


def test_a_list_of_open_handoffs_ends_those_that_it_lacks_and_could_have_named() -> None:
    names = [handoff_writer("w", number) for number in (1, 2, 3, 10)] + [handoff_writer("v", 1)]
    assert handoffs_over(names, "w", still=(2,), newest=3) == ("w/1", "w/3")
    assert handoffs_over(names, "w", still=(), newest=0) == ()
    assert handoffs_over(names, "w", still=(1, 2, 3), newest=10) == ("w/10",)
