"""Writes into a peer's arena through shared memory: the single-host transport.

The writer maps the peer's memory once and copies into it from one worker thread, in pieces, each when the
link's arbiter says so. Invariant: every byte lands inside both memories' bounds, and after an operation's
`quiesced` the worker touches none of its bytes.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from splash_core.dist.process_watch import ProcessWatch
from splash_core.errors import Conflict, InvariantBroken, Unavailable
from splash_core.transport.abi import KvAbi, abi_diff
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import (
    Descriptor,
    MemoryHandle,
    Op,
    OpState,
    Peer,
    Transport,
)
from splash_core.transport.bounds import check_bounds
from splash_core.transport.classes import TrafficClass
from splash_core.transport.guarded_op import GuardedOp
from splash_core.transport.link import BandwidthArbiter, Flow
from splash_core.transport.memory_server import MemoryServer, fetch_memory

_CONNECT_TIMEOUT_S = 5.0
_LOOK_S = 0.05
"""Longest time between two looks at deadlines while nobody's turn comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mapping:
    """A peer's memory in our address space, and the process that owns it."""

    peer: Peer
    memory: mmap.mmap
    anchor: ctypes.c_char
    address: int
    owner: ProcessWatch


class ShmOp(GuardedOp):
    """One write: its pieces, and its state under the transport's lock."""

    def __init__(
        self,
        *,
        target: _Mapping,
        pieces: Sequence[Descriptor],
        flow: Flow,
        deadline: float,
        attempt: int,
        changed: threading.Condition,
    ) -> None:
        super().__init__(attempt=attempt, empty=not pieces, changed=changed)
        self.target = target
        self.flow = flow
        self.deadline = deadline
        self._pieces = pieces
        self._next = 0
        self._copying = False

    @property
    @override
    def quiesced(self) -> bool:
        with self._changed:
            return self._state.is_final and not self._copying

    def expire(self, now: float) -> None:
        """Fail if the deadline has passed, even while others go first. Called with the lock held."""
        if now > self.deadline:
            self._expire()

    def want_piece(self) -> bool:
        """Stand in line for the next piece; False once the operation has ended. Called with the lock held."""
        if self.target.owner.ended():
            self._finish(OpState.FAILED, f"the process that serves {self.target.peer.address} has ended")
        if not self._state.is_final:
            self.flow.want(self._pieces[self._next].num_bytes)
        return not self._state.is_final

    def take_piece(self) -> Descriptor:
        """The next piece, to be copied now. Called with the lock held."""
        self._state = OpState.RUNNING
        self._copying = True
        return self._pieces[self._next]

    def piece_copied(self) -> None:
        """Called with the lock held, after the bytes of `take_piece` have landed."""
        self._copying = False
        self.flow.sent()
        self._written += self._pieces[self._next].num_bytes
        self._next += 1
        if self._next == len(self._pieces):
            self._finish(OpState.DONE)
        self._changed.notify_all()


class ShmTransport(Transport):
    """The `Transport` of ranks on one host."""

    def __init__(self, link: BandwidthArbiter | None = None) -> None:
        """Writes ask `link` for their turn; None: one of its own, without a limit."""
        self._link = link or BandwidthArbiter()
        self._changed = threading.Condition()
        self._awake = threading.Event()
        self._memory: ArenaMemory | None = None
        self._server: MemoryServer | None = None
        self._targets: dict[str, _Mapping] = {}
        self._ops: list[ShmOp] = []
        self._closing = False
        self._worker = threading.Thread(target=self._work, name="shm-transport", daemon=True)
        self._worker.start()

    @override
    def register(self, memory: ArenaMemory, abi: KvAbi) -> MemoryHandle:
        if self._server is not None:
            raise InvariantBroken(f"this transport serves {self._server.address} already")
        self._memory = memory
        self._server = MemoryServer(memory, abi)
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
        with self._changed:
            self._forget_the_dead()
        fd, pid, theirs = fetch_memory(address, timeout_s=_CONNECT_TIMEOUT_S)
        try:
            if differences := abi_diff(abi, theirs):
                raise Conflict(f"the KV at {address} has another ABI: {'; '.join(differences)}")
            num_bytes = os.fstat(fd).st_size
            memory = mmap.mmap(fd, num_bytes)
        except (OSError, ValueError) as error:
            # Out of address space or of mappings, or an empty file: one peer's trouble, not this rank's.
            raise Unavailable(f"the memory at {address} cannot be mapped: {error}") from error
        finally:
            os.close(fd)
        anchor = ctypes.c_char.from_buffer(memory)
        peer = Peer(address=address, num_bytes=num_bytes)
        mapping = _Mapping(
            peer=peer,
            memory=memory,
            anchor=anchor,
            address=ctypes.addressof(anchor),
            owner=ProcessWatch(pid),
        )
        with self._changed:
            self._targets[address] = mapping
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
                pieces=[piece for part in descriptors for piece in part.cut(self._link.chunk_bytes)],
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
        with self._changed:
            self._closing = True
            if not drain:
                for op in self._ops:
                    op.cancel()
        self._awake.set()
        self._worker.join()
        if self._server is not None:
            self._server.close()
        for target in self._targets.values():
            target.owner.close()

    def _forget_the_dead(self) -> None:
        """Let go of peers whose process has ended; an operation under way keeps its own mapping."""
        for address, target in list(self._targets.items()):
            if target.owner.ended():
                target.owner.close()
                del self._targets[address]

    def _work(self) -> None:
        """Copy piece by piece, each time for an operation whose turn it is."""
        while True:
            self._awake.clear()  # before the look: whatever changes after it ends the wait
            with self._changed:
                op = self._next_op()
                if op is None and self._closing and not self._ops:
                    return
                piece = None if op is None else op.take_piece()
                idle = not self._ops
            if op is None or piece is None:
                self._awake.wait(None if idle else min(self._link.delay_s(), _LOOK_S))
                continue
            assert self._memory is not None, "write checks that memory is registered"
            ctypes.memmove(op.target.address + piece.dst, self._memory.address + piece.src, piece.num_bytes)
            with self._changed:
                op.piece_copied()

    def _next_op(self) -> ShmOp | None:
        """Let all stand in line, then see whose turn it is; forget those that have ended."""
        now = time.monotonic()
        for op in list(self._ops):
            op.expire(now)
            if not op.want_piece():
                self._ops.remove(op)
                op.flow.close()
        flow = self._link.first(op.flow for op in self._ops)
        return next((op for op in self._ops if op.flow is flow), None)
