"""All backends of transports, and a peer in a process of its own that tests stop, kill and question.

A backend is a transport's name, or the single-host transport over memory of a device: the fake one, `DEVICE`,
or `cuda:I>J`, whose writers are on GPU I and peers on GPU J.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import psutil
import torch

from splash_core.errors import SplashError
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import Descriptor, Op, OpState, Peer, TrafficClass, Transport
from splash_core.transport.cuda_driver import CudaDriver
from splash_core.transport.device_memory import DeviceCopies, DeviceDriver, DeviceMemory
from splash_core.transport.factory import open_transport
from splash_core.transport.memory import Memory
from splash_core.transport.options import MOONCAKE, SHM, TransportOptions
from tests.support.fake_device import FakeDriver

ABI = KvAbi(
    version="1",
    dtype="fp32",
    page_size=4,
    layers=2,
    latent_dim=32,
    rope_dim=8,
    rope="default theta=10000",
    scale="",
    model="tiny",
)
OPTIONS = {
    SHM: TransportOptions(name=SHM),
    MOONCAKE: TransportOptions(name=MOONCAKE, answer_timeout_s=2.0, stall_timeout_s=1),
}
WITHIN_S = 60.0
"""Far more than anything here takes; no test waits for it to pass."""


DEVICE = "device"


def new_transport(backend: str) -> Transport:
    """A transport on loopback."""
    driver = _driver(backend)
    if driver is None:
        return open_transport(OPTIONS[backend])
    return open_transport(OPTIONS[SHM], copies=DeviceCopies(driver))


def new_memory(backend: str, num_bytes: int) -> Memory:
    """Memory for a rank that uses such a transport."""
    driver = _driver(backend)
    return ArenaMemory(num_bytes) if driver is None else DeviceMemory(num_bytes, driver)


def settle(memory: Memory) -> None:
    """Wait until what torch was asked to do to it is done: copies are on streams of their own."""
    if memory.bytes_B.is_cuda:
        torch.cuda.synchronize(memory.bytes_B.device)


def _driver(backend: str) -> DeviceDriver | None:
    if backend == DEVICE:
        return FakeDriver()
    if not backend.startswith("cuda:"):
        return None
    index = int(backend.removeprefix("cuda:"))
    torch.cuda.set_device(index)
    return CudaDriver(index)


def _writer_s(backend: str) -> str:
    return backend.partition(">")[0]


def _peer_s(backend: str) -> str:
    kind, _, index = backend.partition(">")
    return f"cuda:{index}" if index else kind


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds; fails with its name if it never does."""
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.002)


def _serve(pipe: Connection, backend: str, num_bytes: int) -> None:
    """A decode rank: offers memory and does what it is told with it."""
    transport = new_transport(_peer_s(backend))
    memory = new_memory(_peer_s(backend), num_bytes)
    pipe.send(transport.register(memory, ABI).address)
    while True:
        try:
            word, *arguments = pipe.recv()
        except EOFError:
            return
        if word == "sum":
            start, stop = arguments
            pipe.send(int(memory.bytes_B[start:stop].sum()))
        elif word == "fill":
            memory.bytes_B.fill_(arguments[0])
            settle(memory)
            pipe.send(None)
        elif word == "all":
            pipe.send(bool((memory.bytes_B == arguments[0]).all()))
        elif word == "close":
            transport.close(drain=False)
            pipe.send(None)


@dataclass(frozen=True)
class PeerProcess:
    """A decode rank and the pipe to it."""

    process: BaseProcess
    pipe: Connection
    address: str

    def ask(self, *words: object) -> object:
        """Have it do something; its answer."""
        self.pipe.send(words)
        return self.pipe.recv()

    def stop(self) -> None:
        """Freeze all its threads; returns when they are."""
        self._signal(signal.SIGSTOP)
        process = psutil.Process(self._pid)
        eventually(lambda: process.status() == psutil.STATUS_STOPPED, "the peer is frozen")

    def resume(self) -> None:
        """Let it run."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it, whatever it does; returns when it is gone."""
        self.process.kill()
        self.process.join()

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)

    @property
    def _pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


@contextmanager
def peer_process(backend: str, num_bytes: int) -> Iterator[PeerProcess]:
    """A peer in a process of its own, killed at exit."""
    with _process(_serve, backend, num_bytes) as process:
        yield process


@contextmanager
def _process(
    main: Callable[[Connection, str, int], None], what: str, num_bytes: int
) -> Iterator[PeerProcess]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "splash_core.dist.launch"])
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, what, num_bytes), daemon=True)
    process.start()
    theirs.close()
    try:
        yield PeerProcess(process, ours, str(ours.recv()))
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()


def _write_for(pipe: Connection, group: str, num_bytes: int) -> None:
    """A prefill rank over Mooncake: writes all of its memory again and again, and tells how that went."""
    transport = open_transport(replace(OPTIONS[MOONCAKE], writer=group))
    memory = ArenaMemory(num_bytes)
    transport.register(memory, ABI)
    memory.bytes_B.fill_(5)
    op: Op | None = None
    pipe.send("a writer")
    while True:
        try:
            word, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            if word == "write":
                address, times = arguments
                peer = transport.connect(address, ABI)
                op = transport.write(
                    peer,
                    [Descriptor(0, 0, num_bytes)] * times,
                    traffic=TrafficClass.HANDOFF,
                    deadline_s=WITHIN_S,
                    attempt=1,
                )
            assert op is not None
            status = op.wait(WITHIN_S) if word == "wait" else op.poll()
            pipe.send((status.state, status.written_bytes, status.error, op.quiesced))
        except SplashError as problem:
            pipe.send((OpState.FAILED, 0, str(problem), True))


@contextmanager
def writer_process(group: str, num_bytes: int) -> Iterator[PeerProcess]:
    """A writer over Mooncake in a process of its own, of a group; killed at exit."""
    with _process(_write_for, group, num_bytes) as process:
        yield process


@dataclass(frozen=True)
class Writer:
    """A transport with registered memory."""

    transport: Transport
    memory: Memory

    def fill(self, value: int) -> None:
        """All of its memory."""
        self.memory.bytes_B.fill_(value)
        settle(self.memory)

    def write(
        self,
        peer: Peer,
        *descriptors: Descriptor,
        traffic: TrafficClass = TrafficClass.HANDOFF,
        deadline_s: float = WITHIN_S,
        attempt: int = 1,
    ) -> Op:
        """A write with the usual arguments."""
        return self.transport.write(
            peer, descriptors, traffic=traffic, deadline_s=deadline_s, attempt=attempt
        )


@contextmanager
def new_writer(backend: str, num_bytes: int, *, fill: int = 5) -> Iterator[Writer]:
    """A prefill rank in this process, with its memory filled."""
    transport = new_transport(_writer_s(backend))
    memory = new_memory(_writer_s(backend), num_bytes)
    transport.register(memory, ABI)
    writer = Writer(transport, memory)
    writer.fill(fill)
    try:
        yield writer
    finally:
        transport.close(drain=False)
        memory.close()
