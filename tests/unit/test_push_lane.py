"""A rank's pushes run beside its steps, and a peer's trouble fails one push, not the rank."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from splash_core.engine.push_lane import PushLane
from splash_core.engine.pushing import Pusher
from splash_core.engine.rank_process import run_steps
from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch, RankId, StepId
from splash_core.layout.layout import Layout
from splash_core.pb import common_pb2, rank_pb2
from splash_core.rpc.codec import plan_to_pb
from splash_core.rpc.link import LeaderLink, RankLink
from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.transport.abi import KvAbi
from splash_core.transport.options import TransportOptions
from tests.support.manifest_simulator import toy_arena

RANK = RankId(0)
WITHIN_S = 60
SHM = TransportOptions()
ARENA = toy_arena(num_ranks=2, num_layers=2, ordinary=4, borrowed=0)
ABI = KvAbi(
    version="1", dtype="fp32", page_size=4, layers=2, latent_dim=16, rope_dim=4, rope="", scale="", model="m"
)


class SlowEngine:
    """Its steps last until the test lets them end."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.may_end = threading.Event()

    def step(self, plan: StepPlan) -> StepResult:
        self.started.set()
        assert self.may_end.wait(WITHIN_S)
        return StepResult(step=plan.step, rank=RANK)


@dataclass
class Scene:
    """One rank of a group, its leader's link, and a peer that it writes to."""

    leader: LeaderLink
    engine: SlowEngine
    pusher: Pusher
    peer: Pusher
    ended: list[BaseException | None]

    async def expect(self, kind: str) -> rank_pb2.FromRank:
        rank, message = await asyncio.wait_for(self.leader.receive(), WITHIN_S)
        assert (rank, message.WhichOneof("message")) == (RANK, kind)
        return message

    async def order_push(self, address: str) -> None:
        slot = ARENA.ordinary[0]
        target = rank_pb2.PushTarget(
            peer=common_pb2.RankAddress(rank=1, transport=address), src_slot=[slot], dst_slot=[slot + 1]
        )
        push = rank_pb2.PushPages(push=7, targets=[target], deadline_s=WITHIN_S)
        await self.leader.send(RANK, rank_pb2.ToRank(push=push))


def _rank(scene: Scene) -> None:
    link = RankLink(scene.leader.address, RANK)
    try:
        with PushLane(scene.pusher, scene.leader.address, RANK) as lane:
            link.send(rank_pb2.FromRank(ready=rank_pb2.RankReady(rank=RANK)))
            run_steps(link, scene.engine, lane, num_ranks=1)
        scene.ended.append(None)
    except InvariantBroken as error:
        scene.ended.append(error)
    finally:
        link.close()


def _play(scenario: Callable[[Scene], Coroutine[Any, Any, None]]) -> BaseException | None:
    """Run a rank beside the scenario; returns what the rank ended with."""

    async def main() -> BaseException | None:
        with Pusher.open(ARENA, ABI, SHM) as pusher, Pusher.open(ARENA, ABI, SHM) as peer:
            scene = Scene(LeaderLink("tcp://127.0.0.1:*"), SlowEngine(), pusher, peer, [])
            thread = threading.Thread(target=_rank, args=(scene,))
            thread.start()
            kinds = {
                (await asyncio.wait_for(scene.leader.receive(), WITHIN_S))[1].WhichOneof("message")
                for _ in range(2)
            }
            assert kinds == {"ready", "pushes_open"}
            await scenario(scene)
            await scene.leader.send(RANK, rank_pb2.ToRank(stop=True))
            await asyncio.to_thread(thread.join, WITHIN_S)
            scene.leader.close()
            return scene.ended[0]

    return asyncio.run(main())


def test_a_push_is_written_and_reported_while_a_step_runs() -> None:
    async def scenario(scene: Scene) -> None:
        size = ARENA.slot_bytes
        here, there = (ARENA.ordinary[0] * size, (ARENA.ordinary[0] + 1) * size)
        scene.pusher.memory.bytes_B[here : here + size] = 5
        plan = StepPlan(step=StepId(3), epoch=Epoch(0), layout=Layout.TP)
        await scene.leader.send(RANK, rank_pb2.ToRank(step=plan_to_pb(plan)))
        assert await asyncio.to_thread(scene.engine.started.wait, WITHIN_S)
        await scene.order_push(scene.peer.address)
        report = (await scene.expect("push")).push
        assert (report.push, report.error, report.bytes) == (7, "", size)
        assert not scene.engine.may_end.is_set()
        assert set(scene.peer.memory.bytes_B[there : there + size].tolist()) == {5}
        scene.engine.may_end.set()
        assert (await scene.expect("step")).step.step == 3

    assert _play(scenario) is None


@pytest.mark.parametrize("address", ["mooncake://127.0.0.1:1", "shm:@splash-nobody", "shm:no-socket", ""])
def test_a_peer_that_cannot_be_reached_fails_the_push_and_not_the_rank(address: str) -> None:
    async def scenario(scene: Scene) -> None:
        for _ in range(2):
            await scene.order_push(address)
            report = (await scene.expect("push")).push
            assert report.error.startswith("rank 1: ")
            assert report.bytes == 0

    assert _play(scenario) is None


def test_a_push_lane_that_breaks_is_told_to_the_leader_and_ends_the_rank() -> None:
    async def scenario(scene: Scene) -> None:
        bad = rank_pb2.PushPages(push=8, targets=[rank_pb2.PushTarget(src_slot=[1, 2], dst_slot=[1])])
        await scene.leader.send(RANK, rank_pb2.ToRank(push=bad))
        assert "ValueError" in (await scene.expect("failure")).failure.error

    assert isinstance(_play(scenario), InvariantBroken)
