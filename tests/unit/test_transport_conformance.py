"""What every transport backend must do: a new backend joins by adding itself to `BACKENDS`.

What peers in processes of their own can do to a writer is in tests/distributed/test_transport_processes.py.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splash_core.errors import Conflict, InvariantBroken, Unavailable
from splash_core.transport.base import Descriptor, Op, OpState, Peer, TrafficClass, Transport
from splash_core.transport.limits import LinkLimits
from splash_core.transport.memory import Memory
from splash_core.transport.options import MOONCAKE, SHM
from tests.support.transports import ABI, DEVICE, new_memory, new_transport

BACKENDS = (SHM, DEVICE, MOONCAKE)
SMALL = 4096
PIECE_BYTES = LinkLimits().chunk_bytes
BIG = 48 * PIECE_BYTES


@dataclass(frozen=True)
class Pair:
    """A writer and the memory of the peer that it writes to."""

    writer: Transport
    source: Memory
    reader: Transport
    target: Memory
    peer: Peer

    def write(
        self,
        *descriptors: Descriptor,
        traffic: TrafficClass = TrafficClass.HANDOFF,
        deadline_s: float = 30.0,
        attempt: int = 1,
    ) -> Op:
        return self.writer.write(
            self.peer, descriptors, traffic=traffic, deadline_s=deadline_s, attempt=attempt
        )


def _pair(backend: str, num_bytes: int) -> Pair:
    writer, reader = new_transport(backend), new_transport(backend)
    source, target = new_memory(backend, num_bytes), new_memory(backend, num_bytes)
    writer.register(source, ABI)
    handle = reader.register(target, ABI)
    assert handle.num_bytes == num_bytes
    return Pair(writer, source, reader, target, writer.connect(handle.address, ABI))


def _close(pair: Pair) -> None:
    pair.writer.close(drain=False)
    pair.reader.close(drain=False)
    pair.source.close()
    pair.target.close()


@pytest.fixture(params=BACKENDS, scope="module")
def small(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = _pair(request.param, SMALL)
    yield pair
    _close(pair)


@pytest.fixture(params=BACKENDS)
def big(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = _pair(request.param, BIG)
    pair.source.bytes_B.fill_(5)
    yield pair
    _close(pair)


def _descriptor(draw: st.DrawFn) -> Descriptor:
    num_bytes = draw(st.integers(0, 600))
    return Descriptor(
        draw(st.integers(0, SMALL - num_bytes)), draw(st.integers(0, SMALL - num_bytes)), num_bytes
    )


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(descriptors=st.lists(st.composite(_descriptor)(), max_size=8), seed=st.integers(0, 1000))
def test_exactly_the_described_bytes_land(small: Pair, descriptors: list[Descriptor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    small.source.bytes_B.copy_(torch.randint(0, 256, (SMALL,), generator=generator, dtype=torch.uint8))
    small.target.bytes_B.zero_()
    want_B = torch.zeros(SMALL, dtype=torch.uint8)
    for part in descriptors:
        sent_B = small.source.bytes_B[part.src : part.src + part.num_bytes]
        want_B[part.dst : part.dst + part.num_bytes] = sent_B
    op = small.write(*descriptors, attempt=seed)
    status = op.wait(20)
    assert status.state is OpState.DONE
    assert status.written_bytes == sum(part.num_bytes for part in descriptors)
    assert op.quiesced
    assert op.attempt == seed
    assert torch.equal(small.target.bytes_B, want_B)


@pytest.mark.parametrize(
    "bad",
    [
        Descriptor(SMALL - 9, 0, 10),
        Descriptor(0, SMALL - 9, 10),
        Descriptor(-1, 0, 10),
        Descriptor(0, -1, 10),
        Descriptor(20, 20, -5),
        Descriptor(SMALL + 1, 0, 0),
    ],
)
def test_a_descriptor_that_leaves_a_memory_moves_nothing(small: Pair, bad: Descriptor) -> None:
    small.source.bytes_B.fill_(1)
    small.target.bytes_B.zero_()
    with pytest.raises(InvariantBroken, match=rf"{bad.num_bytes} bytes at offset .* leave the {SMALL} bytes"):
        small.write(Descriptor(0, 0, 100), bad)
    assert small.write(Descriptor(0, SMALL - 1, 1)).wait(20).state is OpState.DONE
    assert small.target.bytes_B.sum() == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_abi_is_refused_with_a_readable_diff(backend: str) -> None:
    pair = _pair(backend, SMALL)
    address = pair.peer.address
    other = new_transport(backend)
    with pytest.raises(Conflict, match="dtype: ours 'bf16', theirs 'fp32'; page_size: ours 16, theirs 4"):
        other.connect(address, replace(ABI, page_size=16, dtype="bf16"))
    assert other.connect(address, ABI) == other.connect(address, ABI)
    other.close(drain=False)
    _close(pair)


def test_cancelled_before_its_turn_moves_nothing_more(big: Pair) -> None:
    first = big.write(Descriptor(0, 0, BIG // 2), traffic=TrafficClass.SWITCH)
    second = big.write(Descriptor(0, BIG // 2, BIG // 2))
    second.cancel()
    assert second.wait(20).state is OpState.CANCELLED
    assert first.wait(30).state is OpState.DONE
    assert second.quiesced
    assert second.poll().written_bytes == big.target.bytes_B[BIG // 2 :].count_nonzero()


def test_quiesced_means_that_no_byte_lands_any_more(big: Pair) -> None:
    op = big.write(*[Descriptor(0, 0, BIG)] * 20)
    while op.poll().written_bytes == 0:
        time.sleep(0.0005)
    op.cancel()
    deadline = time.monotonic() + 20
    while not op.quiesced:
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    status = op.poll()
    assert status.state is OpState.CANCELLED
    big.target.bytes_B.zero_()
    time.sleep(0.05)
    assert big.target.bytes_B.count_nonzero() == 0
    assert op.poll() == status
    assert op.quiesced


def test_a_deadline_fails_the_operation_and_says_how_far_it_came(big: Pair) -> None:
    op = big.write(*[Descriptor(0, 0, BIG)] * 200, deadline_s=0.05)
    status = op.wait(30)
    assert status.state is OpState.FAILED
    assert "deadline" in status.error
    assert status.written_bytes < 200 * BIG
    op.cancel()
    assert op.poll().state is OpState.FAILED


def test_the_more_urgent_class_goes_first(big: Pair) -> None:
    slow = big.write(*[Descriptor(0, 0, BIG)] * 400, traffic=TrafficClass.PRECOPY)
    fast = big.write(Descriptor(0, 0, PIECE_BYTES), traffic=TrafficClass.SWITCH)
    assert fast.wait(30).state is OpState.DONE
    assert slow.poll().state in (OpState.QUEUED, OpState.RUNNING)
    slow.cancel()


def test_draining_finishes_what_was_begun_and_refuses_more(big: Pair) -> None:
    ops = [big.write(Descriptor(0, 0, BIG // 4)) for _ in range(3)]
    closer = threading.Thread(target=lambda: big.writer.close(drain=True))
    closer.start()
    closer.join(60)
    assert not closer.is_alive()
    assert [op.poll().state for op in ops] == [OpState.DONE] * 3
    assert all(op.quiesced for op in ops)
    with pytest.raises(InvariantBroken, match="closed"):
        big.write(Descriptor(0, 0, 1))


def test_closing_without_draining_cancels(big: Pair) -> None:
    op = big.write(*[Descriptor(0, 0, BIG)] * 200)
    big.writer.close(drain=False)
    assert op.poll().state is OpState.CANCELLED
    assert op.quiesced


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_peer_that_is_gone_is_unavailable(backend: str) -> None:
    pair = _pair(backend, SMALL)
    pair.reader.close(drain=False)
    late = new_transport(backend)
    with pytest.raises(Unavailable, match="has its process ended"):
        late.connect(pair.peer.address, ABI)
    late.close(drain=False)
    _close(pair)


def test_bytes_land_as_if_written_in_order(big: Pair) -> None:
    """Later descriptors win where they overlap, also when many are under way at once."""
    half = BIG // 2
    big.source.bytes_B[half:].fill_(9)
    op = big.write(*[Descriptor(0, 0, half), Descriptor(half, 0, half)] * 8, Descriptor(0, 100, 1000))
    assert op.wait(30).state is OpState.DONE
    assert set(big.target.bytes_B[100:1100].tolist()) == {5}
    assert set(big.target.bytes_B[:100].tolist()) == {9}
    assert (big.target.bytes_B[1100:half] == 9).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_writing_needs_registered_memory(backend: str) -> None:
    reader, writer = new_transport(backend), new_transport(backend)
    target = new_memory(backend, SMALL)
    peer = writer.connect(reader.register(target, ABI).address, ABI)
    with pytest.raises(InvariantBroken, match="register"):
        writer.write(peer, [Descriptor(0, 0, 1)], traffic=TrafficClass.HANDOFF, deadline_s=1, attempt=1)
    with pytest.raises(InvariantBroken, match="already"):
        reader.register(target, ABI)
    for transport in (reader, writer):
        transport.close(drain=False)
    target.close()
