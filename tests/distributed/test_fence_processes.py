"""A receiver fences a writer that has fallen silent: real engines on loopback, writers frozen in the middle.

Nothing is timed: a writer stands still until the test lets it go on.
"""

from collections.abc import Iterator

import pytest

from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import OpState, Transport
from splash_core.transport.mooncake_words import at_term
from splash_core.transport.options import MOONCAKE
from tests.support.transports import ABI, PeerProcess, eventually, new_transport, writer_process

NUM_BYTES = 24 << 20
PATTERN = 7


class Receiver:
    """A decode rank in this process."""

    def __init__(self, transport: Transport, memory: ArenaMemory) -> None:
        self.transport = transport
        self.memory = memory
        self.address = transport.register(memory, ABI).address

    def untouched(self) -> bool:
        return bool((self.memory.bytes_B == PATTERN).all())

    def frozen_in_the_middle(self, writer: PeerProcess, *, term: int) -> None:
        """Returns when the writer has begun to write, and stands still."""
        self.memory.bytes_B.fill_(0)
        _write(writer, at_term(self.address, term), times=4000)
        eventually(lambda: bool(self.memory.bytes_B[0] == 5), "the first bytes have landed")
        writer.stop()


def _write(writer: PeerProcess, address: str, *, times: int = 1) -> tuple[OpState, int, str, bool]:
    return writer.ask("write", address, times)  # type: ignore[return-value]


def _outcome(writer: PeerProcess) -> tuple[OpState, int, str, bool]:
    return writer.ask("wait")  # type: ignore[return-value]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    transport, memory = new_transport(MOONCAKE), ArenaMemory(NUM_BYTES)
    try:
        yield Receiver(transport, memory)
    finally:
        transport.close(drain=False)
        memory.close()


@pytest.fixture
def frozen() -> Iterator[PeerProcess]:
    with writer_process("w", NUM_BYTES) as writer:
        yield writer


def test_no_byte_of_a_fenced_writer_lands_when_it_runs_again(receiver: Receiver, frozen: PeerProcess) -> None:
    receiver.frozen_in_the_middle(frozen, term=1)
    receiver.transport.fence("w", term=1)
    # From here on the pages are free: whoever gets them must find them untouched.
    receiver.memory.bytes_B.fill_(PATTERN)
    frozen.resume()
    state, _, error, _ = _outcome(frozen)
    assert state is OpState.FAILED
    assert error
    eventually(lambda: bool(_quiet(frozen)), "the writer knows that it is quiet")
    # It asks for another session of its old term, and is told why there is none.
    state, _, error, _ = _write(frozen, at_term(receiver.address, 1))
    assert state is OpState.FAILED
    assert "writer w was fenced up to term 1" in error
    assert "must claim pages anew" in error
    assert receiver.untouched()
    # With a new claim comes the next term, in which the same process writes as before.
    _write(frozen, at_term(receiver.address, 2))
    state, written, error, quiet = _outcome(frozen)
    assert (state, written, error, quiet) == (OpState.DONE, NUM_BYTES, "", True)
    assert bool((receiver.memory.bytes_B == 5).all())


def test_other_writers_go_on_while_one_is_fenced(receiver: Receiver, frozen: PeerProcess) -> None:
    with writer_process("v", NUM_BYTES) as other:
        receiver.frozen_in_the_middle(frozen, term=1)
        _write(other, at_term(receiver.address, 1), times=40)
        receiver.transport.fence("w", term=1)
        state, written, error, _ = _outcome(other)
        assert (state, written, error) == (OpState.DONE, 40 * NUM_BYTES, "")


def test_bytes_of_a_killed_writer_do_not_land_after_its_fence(
    receiver: Receiver, frozen: PeerProcess
) -> None:
    """Its kernel, and ours, may still hold some when its processes are gone."""
    _write(frozen, at_term(receiver.address, 1), times=4000)
    eventually(lambda: bool(receiver.memory.bytes_B[0] == 5), "the first bytes have landed")
    frozen.kill()
    receiver.transport.fence("w", term=1)
    receiver.memory.bytes_B.fill_(PATTERN)
    with writer_process("v", 4096) as other:
        for _ in range(20):
            _write(other, at_term(receiver.address, 1))
            assert _outcome(other)[0] is OpState.DONE
    assert bool((receiver.memory.bytes_B[4096:] == PATTERN).all())


def _quiet(writer: PeerProcess) -> bool:
    *_, quiet = writer.ask("poll")  # type: ignore[misc]
    return bool(quiet)
