"""A rank's pushes run beside its steps, and a peer's trouble fails one push, not the rank."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from splash_core.dist.fd_passing import fresh_address, listen
from splash_core.engine.progress import StepProgress, StreamFence
from splash_core.engine.push_lane import PushLane
from splash_core.engine.pushing import Pusher
from splash_core.engine.rank_process import run_steps, tell_death
from splash_core.engine.running import EndedStep
from splash_core.errors import InvariantBroken, Unavailable
from splash_core.ids import Epoch, RankId, StepId
from splash_core.layout.layout import Layout
from splash_core.obs.vitals import Died, VitalThreads
from splash_core.pb import common_pb2, rank_pb2
from splash_core.rpc.codec import plan_to_pb
from splash_core.rpc.link import LeaderLink, RankLink
from splash_core.rpc.traffic import samples_from_pb
from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.counters import TrafficCount, TrafficSample
from splash_core.transport.device_memory import DeviceMemory
from splash_core.transport.driver_errors import DriverError
from splash_core.transport.memory import Memory
from splash_core.transport.mooncake_link import PeerLink
from splash_core.transport.mooncake_words import Address, at_term
from splash_core.transport.options import MOONCAKE, TransportOptions
from splash_core.transport.shm import ShmTransport
from tests.support.fake_device import FakeDriver
from tests.support.manifest_simulator import toy_arena
from tests.support.transports import eventually

RANK = RankId(0)
WITHIN_S = 60
SHM = TransportOptions()
ARENA = toy_arena(num_ranks=2, num_layers=2, ordinary=4, borrowed=0)
ABI = KvAbi(
    version="1", dtype="fp32", page_size=4, layers=2, latent_dim=16, rope_dim=4, rope="", scale="", model="m"
)
LAYER_ENDS = tuple(range(1, ARENA.num_layers + 1))


class SlowEngine:
    """Its steps last until the test lets them end."""

    def __init__(self) -> None:
        self.progress = StepProgress(ARENA.num_layers)
        self.started = threading.Event()
        self.may_end = threading.Event()
        self.may_compute = [threading.Event() for _ in range(ARENA.num_layers)]
        self.fence: Callable[[], StreamFence] | None = None

    def begin(self, plan: StepPlan) -> EndedStep:
        self.progress.begin(plan.step)
        self.started.set()
        for layers, may in enumerate(self.may_compute, 1):
            assert may.wait(WITHIN_S)
            self.progress.reached(layers, self.fence)
        assert self.may_end.wait(WITHIN_S)
        self.progress.end()
        return EndedStep(StepResult(step=plan.step, rank=RANK))


@dataclass
class Scene:
    """One rank of a group, its leader's link, and a peer that it writes to."""

    leader: LeaderLink
    engine: SlowEngine
    pusher: Pusher
    peer: Pusher
    ended: list[BaseException | None]
    vitals: VitalThreads
    traffic: tuple[TrafficSample, ...] = ()
    """The newest counts."""

    async def expect(self, kind: str) -> rank_pb2.FromRank:
        """The next message that is not about traffic, unless that is what is expected."""
        message = await self.expect_any(traffic=kind == "traffic")
        assert message.WhichOneof("message") == kind
        return message

    async def expect_any(self, *, traffic: bool = False) -> rank_pb2.FromRank:
        """The next message, whatever it is about; about traffic only if that is wanted."""
        while True:
            rank, message = await asyncio.wait_for(self.leader.receive(), WITHIN_S)
            assert rank == RANK
            if message.HasField("traffic"):
                self.traffic = samples_from_pb(message.traffic.samples)
            if traffic or not message.HasField("traffic"):
                return message

    async def order_push(self, address: str, *, push: int = 7, step: int = 0, slots: int = 1) -> None:
        """One page, or the same one into several slots, layer by layer."""
        slot = ARENA.ordinary[0]
        target = rank_pb2.PushTarget(
            peer=common_pb2.RankAddress(rank=1, transport=address),
            src_slot=[slot] * slots,
            dst_slot=[slot + 1 + index for index in range(slots)],
        )
        order = rank_pb2.PushPages(
            push=push, targets=[target], deadline_s=WITHIN_S, step=step, layer_ends=LAYER_ENDS, group="d"
        )
        await self.leader.send(RANK, rank_pb2.ToRank(push=order))


def _rank(scene: Scene) -> None:
    link = RankLink(scene.leader.address, RANK)
    try:
        with PushLane(scene.pusher, scene.engine.progress, scene.leader.address, RANK, vitals=scene.vitals):
            link.send(rank_pb2.FromRank(ready=rank_pb2.RankReady(rank=RANK)))
            run_steps(link, scene.engine, scene.vitals, num_ranks=1)
        scene.ended.append(None)
    except InvariantBroken as error:
        scene.ended.append(error)
    finally:
        link.close()


def _play(
    scenario: Callable[[Scene], Coroutine[Any, Any, None]],
    options: TransportOptions = SHM,
    take: Callable[[int], Memory] = ArenaMemory,
) -> BaseException | None:
    """Run a rank beside the scenario; returns what the rank ended with."""

    async def main() -> BaseException | None:
        leader = LeaderLink("tcp://127.0.0.1:*")
        vitals = VitalThreads(partial(tell_death, leader.address, RANK))
        with (
            Pusher.open(ARENA, ABI, options, take=take, vitals=vitals) as pusher,
            Pusher.open(ARENA, ABI, SHM, take=take) as peer,
        ):
            scene = Scene(leader, SlowEngine(), pusher, peer, [], vitals)
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


def test_a_fence_is_answered_while_a_step_runs_once_the_writer_s_sessions_are_ended() -> None:
    async def scenario(scene: Scene) -> None:
        options = TransportOptions(name=MOONCAKE, writer="w")
        session = PeerLink.open(Address.parse(at_term(scene.pusher.address, 3)), ABI, options)
        await scene.leader.send(RANK, rank_pb2.ToRank(step=plan_to_pb(_plan(3))))
        assert await asyncio.to_thread(scene.engine.started.wait, WITHIN_S)
        fence = rank_pb2.FenceWriter(writer="w", term=3)
        for _ in range(2):
            await scene.leader.send(RANK, rank_pb2.ToRank(fence=fence))
            assert (await scene.expect("fenced")).fenced == fence
        await asyncio.to_thread(eventually, session.gone, "its channel is closed")
        with pytest.raises(Unavailable, match="was fenced up to term 3"):
            PeerLink.open(session.address, ABI, options)
        session.close()
        for may in (*scene.engine.may_compute, scene.engine.may_end):
            may.set()
        await scene.expect("step")

    assert _play(scenario, TransportOptions(name=MOONCAKE)) is None


def test_a_push_is_written_and_reported_while_a_step_runs() -> None:
    async def scenario(scene: Scene) -> None:
        size = ARENA.slot_bytes
        here, there = (ARENA.ordinary[0] * size, (ARENA.ordinary[0] + 1) * size)
        scene.pusher.memory.bytes_B[here : here + size] = 5
        await scene.leader.send(RANK, rank_pb2.ToRank(step=plan_to_pb(_plan(3))))
        assert await asyncio.to_thread(scene.engine.started.wait, WITHIN_S)
        await scene.order_push(scene.peer.address)
        report = (await scene.expect("push")).push
        assert (report.push, report.error, report.bytes) == (7, "", size)
        assert not scene.engine.may_end.is_set()
        assert set(scene.peer.memory.bytes_B[there : there + size].tolist()) == {5}
        for may in (*scene.engine.may_compute, scene.engine.may_end):
            may.set()
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


def test_a_peer_that_does_not_answer_holds_up_its_own_pushes_only() -> None:
    async def scenario(scene: Scene) -> None:
        address = fresh_address()
        with listen(address):
            for push in (1, 2):
                await scene.order_push(f"shm:{address}", push=push)
            await scene.order_push(scene.peer.address, push=3)
            report = (await scene.expect("push")).push
            assert (report.push, report.error) == (3, "")
            await scene.leader.send(RANK, rank_pb2.ToRank(cancel_push=1))
            report = (await scene.expect("push")).push
            assert (report.push, report.error) == (1, "cancelled")
        report = (await scene.expect("push")).push
        assert report.push == 2
        assert address in report.error

    assert _play(scenario) is None


def test_a_push_lane_that_breaks_is_told_to_the_leader_and_ends_the_rank() -> None:
    async def scenario(scene: Scene) -> None:
        there = common_pb2.RankAddress(rank=1, transport=scene.peer.address)
        target = rank_pb2.PushTarget(peer=there, src_slot=[1, 2], dst_slot=[1])
        bad = rank_pb2.PushPages(push=8, layer_ends=LAYER_ENDS, targets=[target])
        await scene.leader.send(RANK, rank_pb2.ToRank(push=bad))
        assert "ValueError" in (await scene.expect("failure")).failure.error

    assert isinstance(_play(scenario), InvariantBroken)


def test_a_copy_worker_that_dies_while_nothing_is_copied_is_told_to_the_leader_and_ends_the_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(self: object) -> None:
        raise DriverError("the device has gone")

    async def scenario(scene: Scene) -> None:
        monkeypatch.setattr(ShmTransport, "_turn", die)
        told = (await scene.expect("failure")).failure.error
        assert told.startswith("its copy worker of the shm transport has ended")
        assert told.endswith("DriverError: the device has gone")

    assert isinstance(_play(scenario), Died)


def _layer(scene: Scene, slot: int, layer: int) -> set[int]:
    """What a layer of one of the peer's slots holds."""
    at = slot * ARENA.slot_bytes + layer * ARENA.layer_slice_bytes
    return set(scene.peer.memory.bytes_B[at : at + ARENA.layer_slice_bytes].tolist())


async def _until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not there():
            await asyncio.sleep(0.001)


def test_a_layer_range_leaves_when_the_step_that_fills_it_has_computed_its_layers() -> None:
    """The order comes before the step; nothing leaves early, and nothing waits for the step's end."""

    async def scenario(scene: Scene) -> None:
        slot, size = ARENA.ordinary[0], ARENA.slot_bytes
        page_B = scene.pusher.memory.bytes_B[slot * size : (slot + 1) * size]
        await scene.order_push(scene.peer.address, step=3, slots=2)
        await scene.leader.send(RANK, rank_pb2.ToRank(step=plan_to_pb(_plan(3))))
        assert await asyncio.to_thread(scene.engine.started.wait, WITHIN_S)
        await asyncio.sleep(0.05)
        assert _layer(scene, slot + 1, 0) == {0}
        page_B[: ARENA.layer_slice_bytes] = 5
        scene.engine.may_compute[0].set()
        await _until(lambda: _layer(scene, slot + 2, 0) == {5})
        assert _layer(scene, slot + 1, 0) == {5}
        assert _layer(scene, slot + 1, 1) == {0}
        page_B[ARENA.layer_slice_bytes :] = 6
        scene.engine.may_compute[1].set()
        report = (await scene.expect("push")).push
        assert (report.error, report.bytes) == ("", 2 * size)
        assert report.held_s > 0
        assert not scene.engine.may_end.is_set()
        assert [_layer(scene, slot + 2, layer) for layer in range(2)] == [{5}, {6}]
        scene.engine.may_end.set()
        await scene.expect("step")

    assert _play(scenario) is None


def test_a_push_of_a_step_that_is_over_leaves_at_once() -> None:
    async def scenario(scene: Scene) -> None:
        for may in (*scene.engine.may_compute, scene.engine.may_end):
            may.set()
        for step in (3, 4):
            await scene.leader.send(RANK, rank_pb2.ToRank(step=plan_to_pb(_plan(step))))
            await scene.expect("step")
        for step in (2, 3, 4):
            await scene.order_push(scene.peer.address, step=step)
            assert (await scene.expect("push")).push.bytes == ARENA.slot_bytes

    assert _play(scenario) is None


@dataclass(frozen=True)
class DeviceEvent:
    """A fence that has passed; on a real device only threads that have entered may ask."""

    driver: FakeDriver

    def query(self) -> bool:
        self.driver.check_entered()
        return True


def test_a_rank_on_a_device_pushes_and_asks_how_far_it_is_from_threads_that_may() -> None:
    driver = FakeDriver()

    async def scenario(scene: Scene) -> None:
        scene.engine.fence = lambda: DeviceEvent(driver)
        for may in (*scene.engine.may_compute, scene.engine.may_end):
            may.set()
        await scene.order_push(scene.peer.address, step=3, slots=2)
        await scene.leader.send(RANK, rank_pb2.ToRank(step=plan_to_pb(_plan(3))))
        reports = [await scene.expect_any(), await scene.expect_any()]
        pushed = next(report.push for report in reports if report.HasField("push"))
        assert (pushed.error, pushed.bytes) == ("", 2 * ARENA.slot_bytes)

    assert _play(scenario, take=lambda size: DeviceMemory(size, driver)) is None


def test_a_cancelled_push_that_is_held_back_is_reported_and_writes_nothing() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.order_push(scene.peer.address, step=3)
        await scene.leader.send(RANK, rank_pb2.ToRank(cancel_push=7))
        report = (await scene.expect("push")).push
        assert (report.push, report.error, report.bytes) == (7, "cancelled", 0)
        await scene.leader.send(RANK, rank_pb2.ToRank(cancel_push=7))  # it is over: nothing to cancel
        for may in (*scene.engine.may_compute, scene.engine.may_end):
            may.set()
        await scene.leader.send(RANK, rank_pb2.ToRank(step=plan_to_pb(_plan(3))))
        await scene.expect("step")
        assert set(scene.peer.memory.bytes_B.tolist()) == {0}

    assert _play(scenario) is None


def test_the_leader_is_told_what_has_moved_and_to_whom() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.order_push(scene.peer.address, slots=2)
        await scene.expect("push")
        await scene.order_push("shm:@splash-nobody")
        await scene.expect("push")
        while True:
            counts = {sample.count: sample.value for sample in scene.traffic}
            if counts.get(TrafficCount.OPERATIONS) == 2:
                break
            await scene.expect("traffic")
        assert {(sample.traffic, sample.peer) for sample in scene.traffic} == {("handoff", "d/1")}
        assert counts[TrafficCount.BYTES] == 2 * ARENA.slot_bytes
        assert (counts[TrafficCount.FAILURES], counts[TrafficCount.IN_FLIGHT]) == (1, 0)

    assert _play(scenario) is None


def _plan(step: int) -> StepPlan:
    return StepPlan(step=StepId(step), epoch=Epoch(0), layout=Layout.TP)


def test_a_push_lane_that_cannot_connect_is_seen_by_the_step_loop() -> None:
    with Pusher.open(ARENA, ABI, SHM) as pusher:
        vitals = VitalThreads()
        with PushLane(pusher, StepProgress(ARENA.num_layers), "no address", RANK, vitals=vitals):
            pass
        with pytest.raises(Died, match=r"its push lane has ended.*ZMQError"):
            vitals.check()
