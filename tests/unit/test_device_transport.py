"""The single-host transport over a device: order, what is under way, and what it means when it fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.engine.progress import StepProgress
from splash_core.engine.pushing import Pusher
from splash_core.errors import ConfigError, Conflict, InvariantBroken
from splash_core.ids import RankId, StepId
from splash_core.layout.slots import ArenaMap
from splash_core.pb import common_pb2, rank_pb2
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import Descriptor, Op, OpState, Peer, TrafficClass
from splash_core.transport.device_memory import DeviceCopies, DeviceMemory
from splash_core.transport.kinds import CUDA
from splash_core.transport.limits import LinkLimits
from splash_core.transport.options import TransportOptions
from splash_core.transport.shm import ShmTransport
from splash_core.transport.shm_op import chunks_of, size_of
from tests.support.fake_device import FAKE, FakeDriver
from tests.support.manifest_simulator import toy_arena
from tests.support.transports import ABI, DEVICE, WITHIN_S, eventually, peer_process

LIMITS = LinkLimits()
PIECE_BYTES = LIMITS.chunk_bytes
NUM_BYTES = 16 * PIECE_BYTES
LAYERS = 3
ARENA: ArenaMap = toy_arena(num_ranks=2, num_layers=LAYERS, ordinary=4, borrowed=0)


@dataclass(frozen=True)
class Scene:
    """A writer on a device that the test holds up, and a peer on another one."""

    driver: FakeDriver
    writer: ShmTransport
    source: DeviceMemory
    target: DeviceMemory
    peer: Peer

    def write(self, *, deadline_s: float = WITHIN_S) -> Op:
        """All of it."""
        return self.writer.write(
            self.peer,
            [Descriptor(0, 0, NUM_BYTES)],
            traffic=TrafficClass.HANDOFF,
            deadline_s=deadline_s,
            attempt=1,
        )


@contextmanager
def _scene() -> Iterator[Scene]:
    driver, other = FakeDriver(), FakeDriver()
    source, target = DeviceMemory(NUM_BYTES, driver), DeviceMemory(NUM_BYTES, other)
    writer, reader = ShmTransport(copies=source.copies()), ShmTransport(copies=target.copies())
    writer.register(source, ABI)
    peer = writer.connect(reader.register(target, ABI).address, ABI)
    source.bytes_B.copy_(torch.arange(NUM_BYTES, dtype=torch.int32) // 4096 % 251)
    yield Scene(driver, writer, source, target, peer)
    driver.may_copy.set()
    for transport in (writer, reader):
        transport.close(drain=False)


def test_memory_is_zeros_before_anybody_hears_of_it() -> None:
    driver = FakeDriver()
    memory = DeviceMemory(10_000, driver)
    assert driver.zeroed
    assert memory.bytes_B.count_nonzero() == 0
    assert memory.bytes_B.shape == (10_000,)
    memory.close()
    memory.close()


@pytest.mark.parametrize("num_bytes", [0, -5, 2**62])
def test_an_impossible_size_is_a_setting_error(num_bytes: int) -> None:
    with pytest.raises(ConfigError):
        DeviceMemory(num_bytes, FakeDriver())


def test_memory_that_is_refused_says_whether_less_of_it_would_do() -> None:
    with pytest.raises(ConfigError, match="give the group less"):
        DeviceMemory(2**62, FakeDriver())
    driver = FakeDriver()
    driver.refusing = "no descriptors of memory"
    with pytest.raises(ConfigError, match=r"no descriptors of memory; check .*\(the test\)") as refused:
        DeviceMemory(10_000, driver)
    assert "less" not in str(refused.value)


def test_pieces_are_enqueued_together_and_count_when_they_have_landed() -> None:
    with _scene() as scene:
        scene.driver.may_copy.clear()
        op = scene.write()
        eventually(lambda: scene.driver.enqueued == LIMITS.in_flight, "as many pieces as may be under way")
        assert (op.poll().state, op.poll().written_bytes, op.quiesced) == (OpState.RUNNING, 0, False)
        scene.driver.may_copy.set()
        status = op.wait(WITHIN_S)
        assert (status.state, status.written_bytes) == (OpState.DONE, NUM_BYTES)
        assert torch.equal(scene.target.bytes_B, scene.source.bytes_B)
        assert scene.driver.enqueued == NUM_BYTES // PIECE_BYTES


def test_short_pieces_travel_together_and_none_is_lost() -> None:
    with _scene() as scene:
        scene.driver.may_copy.clear()
        step, count = 4096, 3 * PIECE_BYTES // 4096
        parts = [Descriptor(at * step, (count - 1 - at) * step, step) for at in range(count)]
        op = scene.writer.write(
            scene.peer, parts, traffic=TrafficClass.HANDOFF, deadline_s=WITHIN_S, attempt=1
        )
        eventually(lambda: scene.driver.enqueued == count, "three turns are enough for all")
        scene.driver.may_copy.set()
        assert op.wait(WITHIN_S).written_bytes == count * step
        sent, landed = (memory.bytes_B[: count * step] for memory in (scene.source, scene.target))
        assert torch.equal(landed.view(count, step), sent.view(count, step).flip(0))


@settings(max_examples=100)
@given(sizes=st.lists(st.integers(0, 50), max_size=20), most=st.integers(1, 30))
def test_chunks_are_the_same_bytes_in_order_none_larger_than_may_be(sizes: list[int], most: int) -> None:
    ends = list(accumulate(sizes))
    parts = [Descriptor(end - size, 1000 + end - size, size) for end, size in zip(ends, sizes, strict=True)]
    chunks = chunks_of(parts, most)
    assert all(0 < size_of(chunk) <= most for chunk in chunks)
    pieces = [piece for chunk in chunks for piece in chunk]
    assert [piece.dst - piece.src for piece in pieces] == [1000] * len(pieces)
    covered = [at for piece in pieces for at in range(piece.src, piece.src + piece.num_bytes)]
    assert covered == list(range(sum(sizes)))


def test_a_cancelled_write_is_quiet_only_when_the_device_is() -> None:
    with _scene() as scene:
        scene.driver.may_copy.clear()
        op = scene.write()
        eventually(lambda: scene.driver.enqueued == LIMITS.in_flight, "pieces are under way")
        op.cancel()
        assert op.poll().state is OpState.CANCELLED
        assert not op.quiesced
        scene.driver.may_copy.set()
        eventually(lambda: op.quiesced, "the device has ended what it had begun")
        assert scene.driver.enqueued == LIMITS.in_flight
        scene.target.bytes_B.zero_()
        assert scene.target.bytes_B.count_nonzero() == 0


def test_a_device_that_fails_fails_the_write_and_says_that_the_rank_has_to_end() -> None:
    with _scene() as scene:
        scene.driver.failing = "illegal address"
        op = scene.write()
        status = op.wait(WITHIN_S)
        assert status.state is OpState.FAILED
        assert "this rank has to end: DriverError: illegal address" in status.error
        with pytest.raises(InvariantBroken, match="illegal address"):
            _ = op.quiesced
        with pytest.raises(InvariantBroken, match="closed"):
            scene.write()


def test_a_device_that_stands_still_holds_up_no_deadline_and_no_dead_peer() -> None:
    driver = FakeDriver()
    with peer_process(DEVICE, NUM_BYTES) as alive, peer_process(DEVICE, NUM_BYTES) as dead:
        source = DeviceMemory(NUM_BYTES, driver)
        writer = ShmTransport(copies=source.copies())
        writer.register(source, ABI)
        driver.may_copy.clear()
        whole, traffic = [Descriptor(0, 0, NUM_BYTES)], TrafficClass.HANDOFF
        peer = writer.connect(alive.address, ABI)
        endless = writer.write(peer, whole, traffic=traffic, deadline_s=WITHIN_S, attempt=1)
        eventually(lambda: driver.enqueued == LIMITS.in_flight, "its pieces are under way")
        op = writer.write(peer, whole, traffic=traffic, deadline_s=0.01, attempt=2)
        assert "deadline passed" in op.wait(WITHIN_S).error
        eventually(lambda: op.quiesced, "of the late one nothing was begun")
        writer.connect(dead.address, ABI)
        dead.kill()
        eventually(lambda: len(driver.mapped) == 1, "memory of the dead is let go")
        assert not endless.quiesced
        driver.may_copy.set()
        assert endless.wait(WITHIN_S).state is OpState.DONE
        writer.close(drain=False)


@pytest.mark.parametrize("drain", [False, True])
def test_a_device_that_never_goes_on_is_given_up_and_closing_ends(drain: bool) -> None:
    driver, other = FakeDriver(), FakeDriver()
    source, target = DeviceMemory(NUM_BYTES, driver), DeviceMemory(NUM_BYTES, other)
    writer, reader = ShmTransport(copies=source.copies(), hung_s=0.05), ShmTransport(copies=target.copies())
    writer.register(source, ABI)
    peer = writer.connect(reader.register(target, ABI).address, ABI)
    driver.may_copy.clear()
    whole = [Descriptor(0, 0, NUM_BYTES)]
    op = writer.write(peer, whole, traffic=TrafficClass.HANDOFF, deadline_s=WITHIN_S, attempt=1)
    eventually(lambda: driver.enqueued == LIMITS.in_flight, "pieces are under way")
    writer.close(drain=drain)
    with pytest.raises(InvariantBroken, match=r"has to end: Unavailable: .* the device stands still"):
        _ = op.quiesced
    assert driver.mapped, "what may still be written to stays mapped"
    driver.may_copy.set()
    reader.close(drain=False)


def test_memory_of_a_dead_peer_is_unmapped_though_nobody_writes() -> None:
    driver = FakeDriver()
    writer = ShmTransport(copies=DeviceCopies(driver))
    with peer_process(DEVICE, NUM_BYTES) as peer:
        writer.connect(peer.address, ABI)
        assert len(driver.mapped) == 1
        peer.kill()
        eventually(lambda: not driver.mapped, "its memory is let go")
        assert writer.connected(peer.address) is None
    writer.close(drain=False)


def test_memory_of_another_kind_is_refused() -> None:
    host, device = ArenaMemory(NUM_BYTES), DeviceMemory(NUM_BYTES, FakeDriver())
    reader = ShmTransport()
    address = reader.register(host, ABI).address
    writer = ShmTransport(copies=device.copies())
    with pytest.raises(Conflict, match="peer's arena is host memory, ours is fake memory"):
        writer.connect(address, ABI)
    assert TransportOptions().speaks != TransportOptions(memory=CUDA.name).speaks
    for transport in (reader, writer):
        transport.close(drain=False)


@dataclass
class Event:
    """A fence of the stream that computes, which the test lets pass."""

    passed: bool = False

    def query(self) -> bool:
        return self.passed


def _order(address: str) -> rank_pb2.PushPages:
    source, target = ARENA.ordinary[0], ARENA.ordinary[1]
    peer = common_pb2.RankAddress(rank=1, transport=address)
    return rank_pb2.PushPages(
        push=1,
        targets=[rank_pb2.PushTarget(peer=peer, src_slot=[source], dst_slot=[target])],
        deadline_s=WITHIN_S,
        step=1,
        layer_ends=range(1, LAYERS + 1),
        group="d",
    )


def test_no_page_is_copied_before_the_event_behind_its_layers_has_passed() -> None:
    """The host is far ahead of the device: all of a step is enqueued, and the next one too."""
    driver, other = FakeDriver(), FakeDriver()
    progress = StepProgress(LAYERS)
    events = [Event() for _ in range(2 * LAYERS)]
    made = iter(events)

    def advanced() -> int:
        pusher.advance(progress)
        return driver.enqueued

    options = TransportOptions(memory=FAKE.name)
    with (
        Pusher.open(ARENA, ABI, options, take=lambda size: DeviceMemory(size, driver)) as pusher,
        Pusher.open(ARENA, ABI, options, take=lambda size: DeviceMemory(size, other)) as peer,
    ):
        pusher.start(_order(peer.address))
        for step in (1, 2):
            progress.begin(StepId(step))
            for layer in range(1, LAYERS + 1):
                progress.reached(layer, lambda: next(made))
        for layer, event in enumerate(events[:LAYERS]):
            assert [advanced() for _ in range(3)] == [layer] * 3
            event.passed = True
            eventually(lambda n=layer + 1: advanced() == n, "the layer leaves")
        eventually(lambda: bool(pusher.finished(RankId(0))), "the push is reported")
        assert driver.enqueued == LAYERS
