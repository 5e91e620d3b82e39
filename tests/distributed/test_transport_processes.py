"""The shared-memory transport between real processes: bytes arrive, and a dead peer is noticed."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from splash_core.errors import Unavailable
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import Descriptor, OpState
from splash_core.transport.shm import ShmTransport
from splash_core.transport.traffic import TrafficClass

ABI = KvAbi(
    version="1", dtype="fp32", page_size=4, layers=2, latent_dim=32, rope_dim=8, rope="", scale="", model="m"
)
NUM_BYTES = 5_000_000


def serve_memory(pipe: Connection) -> None:
    """A decode rank: offer memory, then answer with the byte sum of whatever range it is asked for."""
    transport = ShmTransport()
    memory = ArenaMemory(NUM_BYTES)
    pipe.send(transport.register(memory, ABI).address)
    while True:
        try:
            start, stop = pipe.recv()
        except EOFError:
            return
        pipe.send(int(memory.bytes_B[start:stop].sum()))


@contextmanager
def decode_rank() -> Iterator[tuple[BaseProcess, Connection]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "splash_core.dist.launch"])
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_memory, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()


def test_pages_cross_processes_and_a_dead_peer_fails_the_write() -> None:
    transport = ShmTransport()
    source = ArenaMemory(NUM_BYTES)
    transport.register(source, ABI)
    source.bytes_B[:] = 3
    with decode_rank() as (process, pipe):
        address = pipe.recv()
        peer = transport.connect(address, ABI)
        assert peer.num_bytes == NUM_BYTES
        op = transport.write(
            peer,
            [Descriptor(0, 1000, 3_000_000), Descriptor(5, NUM_BYTES - 7, 7)],
            traffic=TrafficClass.HANDOFF,
            deadline_s=30,
            attempt=1,
        )
        assert op.wait(30).state is OpState.DONE
        for window, total in (((0, 1000), 0), ((1000, 3_001_000), 9_000_000), ((3_001_000, NUM_BYTES), 21)):
            pipe.send(window)
            assert pipe.recv() == total
        process.kill()
        process.join()
        late = transport.write(
            peer, [Descriptor(0, 0, 10)], traffic=TrafficClass.HANDOFF, deadline_s=30, attempt=2
        )
        status = late.wait(30)
        assert (status.state, status.written_bytes) == (OpState.FAILED, 0)
        assert "has ended" in status.error
        assert late.quiesced
        with pytest.raises(Unavailable):
            transport.connect(address, ABI)
    transport.close(drain=True)
    source.close()
