"""All transports between real processes that are killed and frozen: what fails, fails alone and truthfully.

Nothing here is timed: a peer that is frozen stays so until the test lets it go on, and whatever ends before
that was not held up by it.
"""

import threading
from collections.abc import Iterator

import pytest

from splash_core.errors import SplashError, Unavailable
from splash_core.transport.base import Descriptor, Op, OpState
from splash_core.transport.options import MOONCAKE, SHM
from tests.support.transports import (
    ABI,
    DEVICE,
    WITHIN_S,
    PeerProcess,
    Writer,
    eventually,
    new_writer,
    peer_process,
)

NUM_BYTES = 24 << 20
WHOLE = Descriptor(0, 0, NUM_BYTES)
PATTERN = 7


@pytest.fixture(params=(SHM, DEVICE, MOONCAKE))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def writer(backend: str, peer: PeerProcess, healthy: PeerProcess) -> Iterator[Writer]:
    """Torn down first: its peers may have to say that it is quiet."""
    with new_writer(backend, NUM_BYTES) as writer:
        yield writer
        for process in (peer, healthy):
            if process.process.is_alive():
                process.resume()


@pytest.fixture
def peer(backend: str) -> Iterator[PeerProcess]:
    with peer_process(backend, NUM_BYTES) as peer:
        yield peer


@pytest.fixture
def healthy(backend: str) -> Iterator[PeerProcess]:
    with peer_process(backend, NUM_BYTES) as peer:
        yield peer


class Watch:
    """Looks at `quiesced` all the time, from another thread."""

    def __init__(self, op: Op) -> None:
        self._op = op
        self._stop = threading.Event()
        self._seen: list[bool] = []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.001):
            self._note()

    def _note(self) -> None:
        quiet = self._op.quiesced
        if not self._seen or self._seen[-1] != quiet:
            self._seen.append(quiet)

    def close(self) -> list[bool]:
        """The values seen up to now, without repetitions."""
        self._stop.set()
        self._thread.join()
        self._note()
        return self._seen


def _long_write(writer: Writer, peer: PeerProcess, *, deadline_s: float = WITHIN_S) -> Op:
    """So many bytes that it is certainly under way when this returns."""
    op = writer.write(writer.transport.connect(peer.address, ABI), *[WHOLE] * 400, deadline_s=deadline_s)
    eventually(lambda: op.poll().written_bytes > 0, "the first bytes are written")
    return op


def _answers(writer: Writer, peer: PeerProcess) -> bool:
    try:
        writer.transport.connect(peer.address, ABI)
    except Unavailable:
        return False
    return True


def _still_works(writer: Writer, peer: PeerProcess) -> None:
    peer.ask("fill", 0)
    op = writer.write(writer.transport.connect(peer.address, ABI), WHOLE)
    assert op.wait(WITHIN_S).state is OpState.DONE
    assert op.quiesced
    assert peer.ask("sum", 0, NUM_BYTES) == 5 * NUM_BYTES


def _nothing_lands(writer: Writer, peer: PeerProcess, other: PeerProcess) -> None:
    """Over the time of whole other writes, a pattern in the peer's memory stays as it is."""
    peer.ask("fill", PATTERN)
    for _ in range(3):
        _still_works(writer, other)
    assert peer.ask("all", PATTERN)


def test_pages_cross_processes_whole_and_in_their_places(writer: Writer, peer: PeerProcess) -> None:
    writer.fill(3)
    target = writer.transport.connect(peer.address, ABI)
    assert target.num_bytes == NUM_BYTES
    op = writer.write(target, Descriptor(0, 1000, 3_000_000), Descriptor(5, NUM_BYTES - 7, 7))
    assert op.wait(WITHIN_S).state is OpState.DONE
    for (start, stop), total in (
        ((0, 1000), 0),
        ((1000, 3_001_000), 9_000_000),
        ((3_001_000, NUM_BYTES), 21),
    ):
        assert peer.ask("sum", start, stop) == total


def test_a_peer_that_was_killed_before_fails_the_write_at_once(writer: Writer, peer: PeerProcess) -> None:
    target = writer.transport.connect(peer.address, ABI)
    peer.kill()
    late = writer.write(target, Descriptor(0, 0, 10), attempt=2)
    status = late.wait(WITHIN_S)
    assert (status.state, status.written_bytes) == (OpState.FAILED, 0)
    assert "has ended" in status.error
    eventually(lambda: late.quiesced, "the write to a dead peer is quiet")
    with pytest.raises(Unavailable, match="has its process ended"):
        writer.transport.connect(peer.address, ABI)


def test_a_peer_killed_in_the_middle_fails_its_write_and_nobody_else_s(
    writer: Writer, peer: PeerProcess, healthy: PeerProcess
) -> None:
    other = _long_write(writer, healthy)
    op = _long_write(writer, peer)
    watch = Watch(op)
    peer.kill()
    status = op.wait(WITHIN_S)
    assert status.state is OpState.FAILED
    assert status.error
    eventually(lambda: op.quiesced, "the write to a dead peer is quiet")
    assert watch.close() in ([True], [False, True])
    assert other.poll().state is not OpState.FAILED
    other.cancel()
    _still_works(writer, healthy)


def test_a_frozen_peer_is_not_written_to_and_holds_up_nobody(
    writer: Writer, peer: PeerProcess, healthy: PeerProcess
) -> None:
    problems: list[Exception] = []

    def connect() -> None:
        try:
            writer.transport.connect(peer.address, ABI)
        except SplashError as problem:
            problems.append(problem)

    peer.stop()
    first_contact = threading.Thread(target=connect)
    first_contact.start()
    _still_works(writer, healthy)
    first_contact.join(WITHIN_S)
    assert [type(problem) for problem in problems] == [Unavailable]
    peer.resume()
    eventually(lambda: _answers(writer, peer), "the peer is asked again and answers")
    _still_works(writer, peer)


def test_a_peer_frozen_between_handshake_and_first_write_holds_up_nobody(
    writer: Writer, peer: PeerProcess, healthy: PeerProcess
) -> None:
    target = writer.transport.connect(peer.address, ABI)
    peer.stop()
    op = writer.write(target, *[WHOLE] * 4000, deadline_s=0.5)
    _still_works(writer, healthy)
    assert op.wait(WITHIN_S).state is OpState.FAILED
    peer.resume()
    eventually(lambda: op.quiesced, "the write is quiet once the peer runs")
    _nothing_lands(writer, peer, healthy)


def test_a_peer_frozen_in_the_middle_holds_up_nobody_and_gets_no_byte_after_quiet(
    writer: Writer, peer: PeerProcess, healthy: PeerProcess
) -> None:
    op = _long_write(writer, peer)
    watch = Watch(op)
    peer.stop()
    op.cancel()
    assert op.poll().state is OpState.CANCELLED
    _still_works(writer, healthy)
    peer.resume()
    eventually(lambda: op.quiesced, "the write is quiet once the peer runs")
    _nothing_lands(writer, peer, healthy)
    assert watch.close() in ([True], [False, True])
    assert op.poll().state is OpState.CANCELLED
    _still_works(writer, peer)


def test_closing_waits_for_a_frozen_peer_and_then_nothing_lands(
    writer: Writer, backend: str, peer: PeerProcess, healthy: PeerProcess
) -> None:
    with new_writer(backend, NUM_BYTES) as leaving:
        op = _long_write(leaving, peer)
        peer.stop()
        closer = threading.Thread(target=lambda: leaving.transport.close(drain=False))
        closer.start()
        _still_works(writer, healthy)
        peer.resume()
        closer.join(WITHIN_S)
        assert not closer.is_alive()
    assert op.quiesced
    assert op.poll().state is OpState.CANCELLED
    _nothing_lands(writer, peer, healthy)


def test_a_failed_write_is_not_quiet_before_the_peer_says_so() -> None:
    with peer_process(MOONCAKE, NUM_BYTES) as peer, new_writer(MOONCAKE, NUM_BYTES) as writer:
        op = _long_write(writer, peer)
        peer.stop()
        status = op.wait(WITHIN_S)
        assert status.state is OpState.FAILED
        # The library has said so: all pieces have their final state, and megabytes still wait in buffers.
        assert "did not move" in status.error
        assert not op.quiesced
        peer.resume()
        eventually(lambda: op.quiesced, "the peer's word")


def test_a_peer_that_leaves_in_order_fails_the_write() -> None:
    """Over shared memory it would go on: memory that is mapped stays writable, and nobody else's."""
    with peer_process(MOONCAKE, NUM_BYTES) as peer, new_writer(MOONCAKE, NUM_BYTES) as writer:
        op = _long_write(writer, peer)
        peer.ask("close")
        assert op.wait(WITHIN_S).state is OpState.FAILED
        eventually(lambda: op.quiesced, "the peer has closed")
        peer.ask("fill", PATTERN)
        with pytest.raises(Unavailable):
            writer.transport.connect(peer.address, ABI)
        assert peer.ask("all", PATTERN)


def test_a_silent_peer_is_not_waited_for_again_at_once() -> None:
    with peer_process(MOONCAKE, NUM_BYTES) as peer, new_writer(MOONCAKE, NUM_BYTES) as writer:
        peer.stop()
        with pytest.raises(Unavailable, match="is its process stopped"):
            writer.transport.connect(peer.address, ABI)
        with pytest.raises(Unavailable, match="a moment ago, try later"):
            writer.transport.connect(peer.address, ABI)
        peer.resume()
        eventually(lambda: _answers(writer, peer), "the peer is asked again and answers")


def test_threads_and_engines_of_dead_peers_do_not_pile_up() -> None:
    with peer_process(MOONCAKE, NUM_BYTES) as healthy, new_writer(MOONCAKE, NUM_BYTES) as writer:
        for _ in range(3):
            with peer_process(MOONCAKE, NUM_BYTES) as peer:
                _still_works(writer, peer)
        _still_works(writer, healthy)
        eventually(lambda: _sessions() == 1, "only the living peer's thread is left")


def _sessions() -> int:
    return sum(thread.name.startswith("mooncake session") for thread in threading.enumerate())
