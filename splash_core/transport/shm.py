"""Writes into a peer's arena that is mapped here: the single-host transport.

The writer maps the peer's memory once and has it copied into from one worker thread, in chunks, each when the
link's arbiter says so. How bytes are copied is the memory's affair (`memory.Copies`): on GPUs several chunks
are under way at a time, and looked at, never waited for: a device that stands still holds up nothing else.
Invariant: every byte lands inside both memories' bounds, and after an operation's `quiesced` none of its
bytes is touched.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from splash_core.dist.process_watch import ProcessWatch
from splash_core.errors import InvariantBroken, Unavailable
from splash_core.obs.vitals import VitalThreads
from splash_core.transport.abi import KvAbi
from splash_core.transport.base import (
    Descriptor,
    MemoryHandle,
    Op,
    Peer,
    Transport,
)
from splash_core.transport.bounds import check_bounds
from splash_core.transport.classes import TrafficClass
from splash_core.transport.host_copies import HostCopies
from splash_core.transport.link import BandwidthArbiter
from splash_core.transport.memory import Copies, Copy, Landing, Memory
from splash_core.transport.memory_server import MemoryServer, fetch_memory
from splash_core.transport.shm_op import Mapping, ShmOp, chunks_of, size_of

_CONNECT_TIMEOUT_S = 5.0
_LOOK_S = 0.05
"""Longest time between two looks at deadlines while nobody's turn comes."""
_OWNERS_S = 0.5
"""How often it looks whether peers have ended: their memory would not be free before it is let go here."""
_LEAST_LOOK_S, _LOOKS_AN_AGE = 1e-4, 8
"""Chunks under way are looked at again after an eighth of the oldest one's age, and not sooner than that."""
_HUNG_S = 30.0
"""A chunk that takes so long will not land: its device stands still."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A chunk under way."""

    op: ShmOp
    num_bytes: int
    landing: Landing
    began: float


class ShmTransport(Transport):
    """The `Transport` of ranks on one host."""

    def __init__(
        self,
        link: BandwidthArbiter | None = None,
        *,
        copies: Copies | None = None,
        hung_s: float = _HUNG_S,
        vitals: VitalThreads | None = None,
    ) -> None:
        """Nothing is served or written yet.

        Args:
            link: whom writes ask for their turn; None: one of its own, without a limit.
            copies: of the memory that will be registered; None: of host memory.
            hung_s: seconds after which a chunk under way is given up, and with it this transport.
            vitals: of the rank, which ends when copying or serving has failed; None: nobody looks.
        """
        self._hung_s = hung_s
        self._vitals = vitals or VitalThreads()
        self._link = link or BandwidthArbiter()
        self._copies = copies or HostCopies()
        self._changed = threading.Condition()
        self._awake = threading.Event()
        self._memory: Memory | None = None
        self._server: MemoryServer | None = None
        self._targets: dict[str, Mapping] = {}
        self._ops: list[ShmOp] = []
        self._flights: deque[_Flight] = deque()
        """Used by the worker alone."""
        self._owners_at = 0.0
        self._closing = False
        self._failed = False
        self._worker = self._vitals.keep("copy worker of the shm transport", self._work)

    @override
    def register(self, memory: Memory, abi: KvAbi) -> MemoryHandle:
        if self._server is not None:
            raise InvariantBroken(f"this transport serves {self._server.address} already")
        self._memory = memory
        self._server = MemoryServer(memory, abi, self._vitals)
        return MemoryHandle(address=self._server.address, num_bytes=memory.num_bytes)

    @override
    def connected(self, address: str) -> Peer | None:
        with self._changed:
            known = self._targets.get(address)
            return None if known is None or known.owner.ended() else known.peer

    @override
    def connect(self, address: str, abi: KvAbi) -> Peer:
        known = self.connected(address)
        if known is not None:
            return known
        found = fetch_memory(address, abi, timeout_s=_CONNECT_TIMEOUT_S)
        try:
            memory = self._copies.attach(found.offer)
        finally:
            os.close(found.offer.fd)
        peer = Peer(address=address, num_bytes=memory.num_bytes)
        with self._changed:
            self._targets = {at: target for at, target in self._targets.items() if not target.released}
            self._targets[address] = Mapping(peer=peer, memory=memory, owner=ProcessWatch(found.pid))
        return peer

    @override
    def write(
        self,
        peer: Peer,
        descriptors: Sequence[Descriptor],
        *,
        traffic: TrafficClass,
        deadline_s: float,
        attempt: int,
    ) -> Op:
        if self._memory is None:
            raise InvariantBroken("register the local memory before the first write")
        check_bounds(descriptors, self._memory.num_bytes, peer)
        with self._changed:
            target = self._targets.get(peer.address)
            if target is None:
                raise Unavailable(f"{peer.address} is not connected: its process has ended, or it never was")
            if self._closing:
                raise InvariantBroken(f"write to {peer.address} after the transport was closed")
            op = ShmOp(
                target=target,
                chunks=chunks_of(descriptors, self._link.chunk_bytes),
                flow=self._link.flow(
                    traffic,
                    deadline_s=deadline_s,
                    num_bytes=sum(part.num_bytes for part in descriptors),
                    wake=self._awake.set,
                ),
                deadline=time.monotonic() + deadline_s,
                attempt=attempt,
                changed=self._changed,
            )
            self._ops.append(op)
        self._awake.set()
        return op

    @override
    def fence(self, writer: str, *, term: int) -> None:
        raise InvariantBroken(
            f"writer {writer} (term {term}) has mapped this memory: only the end of its processes ends that"
        )

    @override
    def close(self, *, drain: bool) -> None:
        self._vitals.release(self._worker)
        with self._changed:
            self._closing = True
            if not drain:
                for op in self._ops:
                    op.cancel()
        self._awake.set()
        # A chunk lands, or is given up.
        self._worker.join()
        if self._server is not None:
            self._server.close()
        if not self._failed:
            # Else copies may be under way there: these mappings end with the process.
            for target in self._targets.values():
                target.release()

    def _work(self) -> None:
        try:
            self._copies.enter_thread()
            while self._turn():
                pass
        except Exception as error:  # of a device: nothing that it was asked for can be relied on any more
            with self._changed:
                self._closing = self._failed = True
                for op in self._ops:
                    op.lose(f"copying has failed, so this rank has to end: {type(error).__name__}: {error}")
            raise

    def _turn(self) -> bool:
        """Start a chunk of an operation whose turn it is, or wait; False when nothing is left to do."""
        self._awake.clear()  # before the look: whatever changes after it ends the wait
        with self._changed:
            op = self._next_op()
            if self._closing and not self._ops:
                return False
            chunk = () if op is None else op.take_chunk()
            idle = not self._ops
        if op is not None:
            self._start(op, chunk)
        else:
            self._awake.wait(_OWNERS_S if idle else self._pause_s())
        self._count_landed()
        return True

    def _start(self, op: ShmOp, chunk: Sequence[Descriptor]) -> None:
        assert self._memory is not None, "write checks that memory is registered"
        there, here, began = op.target.memory.address, self._memory.address, time.monotonic()
        landing = self._copies.start(
            [Copy(there + piece.dst, here + piece.src, piece.num_bytes) for piece in chunk]
        )
        self._flights.append(_Flight(op, size_of(chunk), landing, began))

    def _pause_s(self) -> float:
        """Until the next look at deadlines and chunks under way: no device is waited for without a bound."""
        if not self._flights:
            return min(self._link.delay_s(), _LOOK_S)
        age = time.monotonic() - self._flights[0].began
        return min(max(age / _LOOKS_AN_AGE, _LEAST_LOOK_S), _LOOK_S)

    def _count_landed(self) -> None:
        """Copies land in the order in which they were started.

        Raises:
            Unavailable: the oldest one does not.
        """
        now = time.monotonic()  # before the look: a process that was stopped meanwhile is not its device
        while self._flights and self._flights[0].landing.over:
            flight = self._flights.popleft()
            with self._changed:
                flight.op.chunk_landed(flight.num_bytes)
        if self._flights and now - self._flights[0].began > self._hung_s:
            raise Unavailable(
                f"{self._flights[0].num_bytes} bytes have been under way for {self._hung_s:g} s: the device "
                "stands still; look at it before the group is started again"
            )

    def _next_op(self) -> ShmOp | None:
        """Let all stand in line, then see whose turn it is; forget those that are over."""
        now = time.monotonic()
        for op in list(self._ops):
            op.look(now)
            if op.over:
                self._ops.remove(op)
                op.flow.close()
        if now >= self._owners_at:
            self._owners_at = now + _OWNERS_S
            self._let_go_of_the_dead()
        waiting = {op.flow: op for op in self._ops if op.wants}
        flow = self._link.first(waiting)
        return None if flow is None else waiting[flow]

    def _let_go_of_the_dead(self) -> None:
        """Unmap memory of processes that have ended; an operation that is not over yet keeps its target."""
        in_use = [op.target for op in self._ops]
        for target in self._targets.values():
            if target.owner.ended() and target not in in_use:
                target.release()
