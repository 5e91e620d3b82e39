"""What a decode group answers to writers: terms, lists of open handoffs, and fences by its own ranks."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from services.decode.servicer import DecodeService
from splash_core.leader.build import GroupBlueprint
from splash_core.leader.leader import GroupLeader
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import common_pb2, decode_pb2
from splash_core.scheduling.leases import Grant
from splash_core.scheduling.roles import Role
from splash_core.spec.request import SamplingParams
from tests.support.contacts import ENDED
from tests.support.toy_group import INCARNATION, ToyGroup

CONTEXT = cast("grpc.aio.ServicerContext", None)
PROMPT = (1, 2, 3)


class Ranks:
    """Ranks that answer a fence when the test says so."""

    def __init__(self) -> None:
        self.fenced: list[tuple[str, int]] = []
        self.answered = asyncio.Event()
        self.vitals = VitalTasks()

    async def fence(self, writer: str, *, term: int) -> None:
        self.fenced.append((writer, term))
        await self.answered.wait()

    def fence_owed(self, writer: str) -> list[int]:
        del writer
        return [0, 1]


class Scene:
    """A decode group over Mooncake, or over shared memory."""

    def __init__(self, sign_within_s: float) -> None:
        self.group = ToyGroup(role=Role.DECODE)
        self.ranks = Ranks()
        leader = SimpleNamespace(
            scheduler=self.group.scheduler, ranks=self.ranks, join=lambda part: None, wake=lambda: None
        )
        settings = SimpleNamespace(queue_requests=8, queue_tokens=100)
        blueprint = SimpleNamespace(
            group="decode-0", incarnation=INCARNATION, settings=settings, sign_within_s=sign_within_s
        )
        self.service = DecodeService(cast("GroupBlueprint", blueprint), cast("GroupLeader", leader))

    def lease(self) -> Grant:
        grant = self.group.reserve(PROMPT, SamplingParams(max_tokens=2))
        assert grant is not None
        return grant

    async def claim(self, grant: Grant, handoff: int) -> decode_pb2.HandoffAck:
        process = common_pb2.Process(host=ENDED.host, pid=ENDED.pid, start_ticks=ENDED.start_ticks)
        writer = decode_pb2.Writer(group="prefill-0", incarnation="w", ranks=[process], handoff=handoff)
        message = decode_pb2.LeaseClaim(
            lease=grant.lease, attempt=grant.attempt, incarnation=INCARNATION, writer=writer
        )
        return await self.service.ClaimLease(message, CONTEXT)

    async def tell(
        self, *handoffs: int, newest: int, incarnation: str = INCARNATION
    ) -> decode_pb2.HandoffAck:
        message = decode_pb2.OpenHandoffs(
            incarnation=incarnation, writer="w", handoffs=handoffs, newest=newest
        )
        return await self.service.TellHandoffs(message, CONTEXT)

    def states(self) -> list[str]:
        return [lease.state.value for lease in self.group.scheduler.audit().leases]


def play(scenario: Callable[[Scene], Coroutine[Any, Any, None]], *, sign_within_s: float = 30.0) -> None:
    async def main() -> None:
        scene = Scene(sign_within_s)
        await scenario(scene)
        await scene.service.close()

    asyncio.run(main())


def test_a_list_without_a_handoff_is_its_abandon_and_may_come_again() -> None:
    async def scenario(scene: Scene) -> None:
        kept, left, waiting = scene.lease(), scene.lease(), scene.lease()
        for number, grant in enumerate((kept, left, waiting), 1):
            assert (await scene.claim(grant, number)).term == 1
        scene.group.cancel(left.seq)
        assert scene.states() == ["claimed", "quarantined", "claimed"]
        # Composed before the third handoff was opened: of that it tells nothing.
        for _ in range(2):
            assert (await scene.tell(1, newest=2)).accepted
            assert scene.states() == ["claimed", "claimed"]
        assert (await scene.tell(1, newest=3)).accepted
        assert scene.states() == ["claimed", "granted"]
        scene.group.scheduler.check_integrity()

    play(scenario)


def test_a_list_for_another_incarnation_changes_nothing() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.claim(scene.lease(), 1)
        answer = await scene.tell(newest=1, incarnation="of yesterday")
        assert not answer.accepted
        assert answer.reason == f"incarnation: this is {INCARNATION!r}, not 'of yesterday'"
        assert scene.states() == ["claimed"]

    play(scenario)


def test_pages_of_a_dead_writer_are_quarantined_until_the_ranks_have_ended_its_sessions() -> None:
    async def scenario(scene: Scene) -> None:
        first, second = scene.lease(), scene.lease()
        assert (await scene.claim(first, 1)).accepted
        scene.group.cancel(first.seq)
        scene.service._writers.look()
        await asyncio.sleep(0)
        assert scene.ranks.fenced == [("w", 1)]
        assert scene.states() == ["quarantined", "granted"]
        refused = await scene.claim(second, 2)
        assert not refused.accepted
        assert "prefill-0 is being fenced, its processes have ended" in refused.reason
        (wait,) = scene.service.waits()
        assert wait.waits_for == "ranks 0, 1 to end its sessions (its processes have ended)"
        scene.ranks.answered.set()
        await asyncio.sleep(0.001)
        assert scene.states() == ["granted"]
        assert (await scene.claim(second, 3)).term == 2
        scene.group.scheduler.check_integrity()

    play(scenario)


@pytest.mark.parametrize("handoff", [1, 2])
def test_over_shared_memory_the_end_of_its_processes_is_enough(handoff: int) -> None:
    async def scenario(scene: Scene) -> None:
        grant = scene.lease()
        await scene.claim(grant, handoff)
        scene.group.cancel(grant.seq)
        scene.service._writers.look()
        await asyncio.sleep(0.001)
        assert scene.ranks.fenced == []
        scene.group.assert_empty()

    play(scenario, sign_within_s=0.0)
