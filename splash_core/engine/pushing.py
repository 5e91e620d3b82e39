"""A rank's side of handoffs: the arena that peers may write, and the writes under way to theirs.

The arena is page-major: a slot holds all layers of a page, so a layer range of a page is one descriptor, and
ranges that are ready together leave as one. Invariant: a push is reported exactly once, and only when none
of its bytes can land any more, failed or not: the report is what lets the leader give pages back on both
sides.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from splash_core.engine.meetings import Meetings
from splash_core.engine.progress import StepProgress
from splash_core.errors import InvariantBroken, SplashError
from splash_core.ids import RankId, StepId
from splash_core.layout.slots import ArenaMap
from splash_core.obs.vitals import VitalThreads
from splash_core.pb import rank_pb2
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import Descriptor, MemoryHandle, Op, OpState, Peer, Transport
from splash_core.transport.classes import TrafficClass
from splash_core.transport.counters import CounterSource, TrafficCounters, TrafficSample, summed
from splash_core.transport.factory import open_transport
from splash_core.transport.link import RankLinks
from splash_core.transport.memory import Memory
from splash_core.transport.options import TransportOptions


@dataclass(slots=True)
class _PushUnderWay:
    order: rank_pb2.PushPages
    ordered_at: float
    layers_sent: int = 0
    """All targets have been given these first layers."""
    ops: list[Op] = field(default_factory=list[Op])
    peers: list[str] = field(default_factory=list[str])
    """Where each of `ops` goes."""
    error: str = ""
    """Why some of it was not even started."""
    started_at: float | None = None

    @property
    def held_back(self) -> bool:
        """True while some of it waits for its layers."""
        return not self.error and self.layers_sent < self.order.layer_ends[-1]

    @property
    def quiet(self) -> bool:
        """True when nothing of it is to come, and nothing can land any more."""
        return not self.held_back and all(op.quiesced for op in self.ops)


class Pusher:
    """Memory and transport of one rank."""

    def __init__(
        self,
        transport: Transport,
        memory: Memory,
        handle: MemoryHandle,
        *,
        arena: ArenaMap,
        abi: KvAbi,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._memory = memory
        self._handle = handle
        self._meetings = Meetings(transport, abi)
        self._arena = arena
        self._clock = clock
        self._under_way: list[_PushUnderWay] = []
        self._counters = TrafficCounters()
        self.sources: tuple[CounterSource, ...] = (self._counters,)
        """Counts that the leader is told; who schedules the rank's links may add its own."""

    @classmethod
    @contextmanager
    def open(
        cls,
        arena: ArenaMap,
        abi: KvAbi,
        options: TransportOptions,
        links: RankLinks | None = None,
        *,
        take: Callable[[int], Memory] = ArenaMemory,
        vitals: VitalThreads | None = None,
    ) -> Iterator["Pusher"]:
        """Allocate and serve a rank's arena; leaving the block waits until nothing moves any more.

        Args:
            arena: the slot map.
            abi: what peers must agree on.
            options: of the transport.
            links: whom writes ask for their turn, and whose counts are told too; None: without limits.
            take: takes memory of a size, where the rank computes.
            vitals: of the rank; None: nobody looks.
        """
        memory = take(arena.arena_bytes)
        transport = open_transport(options, links, copies=memory.copies(), vitals=vitals)
        try:
            handle = transport.register(memory, abi)
            pusher = cls(transport, memory, handle, arena=arena, abi=abi)
            pusher.sources += () if links is None else (links.phase, links.host)
            try:
                yield pusher
            finally:
                pusher._meetings.close()
        finally:
            transport.close(drain=False)
            memory.close()

    @property
    def memory(self) -> Memory:
        """The arena, zero-filled at start."""
        return self._memory

    @property
    def address(self) -> str:
        """Where peers attach."""
        return self._handle.address

    @property
    def busy(self) -> bool:
        """True while pushes are under way or held back."""
        return bool(self._under_way)

    def start(self, order: rank_pb2.PushPages) -> None:
        """Take an order; `advance` starts its writes."""
        ends = list(order.layer_ends)
        if not ends or ends != sorted(set(ends)) or ends[-1] != self._arena.num_layers:
            raise InvariantBroken(
                f"push {order.push} names layers {ends}, there are {self._arena.num_layers}"
            )
        self._under_way.append(_PushUnderWay(order, self._clock()))
        for target in order.targets:
            self._counters.began(TrafficClass.HANDOFF, _peer(order, target))

    def cancel(self, push: int) -> None:
        """Start nothing more of a push and end its writes; unknown ones have been reported already."""
        for entry in self._under_way:
            if entry.order.push == push and not entry.error:
                self._fail(entry, "cancelled")

    def fence(self, writer: str, *, term: int) -> None:
        """Let a writing group write no more into the arena, in this term of its or an earlier one."""
        self._transport.fence(writer, term=term)

    def advance(self, progress: StepProgress) -> None:
        """Start the writes of all layer ranges that have been computed, in the order of the orders."""
        for push in self._under_way:
            if push.held_back:
                done = progress.layers_done(StepId(push.order.step))
                ready = max((end for end in push.order.layer_ends if end <= done), default=0)
                if ready > push.layers_sent:
                    self._write(push, push.layers_sent, ready)

    def finished(self, rank: RankId) -> list[rank_pb2.PushResult]:
        """Reports of pushes that are over and quiet."""
        over = [push for push in self._under_way if push.quiet]
        self._under_way = [push for push in self._under_way if push not in over]
        return [self._report(push, rank) for push in over]

    def samples(self) -> tuple[TrafficSample, ...]:
        """What this rank has pushed so far, and what its other sources count."""
        return summed(source.samples() for source in self.sources)

    def _write(self, push: _PushUnderWay, first: int, end: int) -> None:
        """Start writing layers `first … end` of all pages, unless a peer has yet to answer."""
        peers = self._peers(push)
        if peers is None:
            return
        if push.started_at is None:
            push.started_at = self._clock()
        size, layer = self._arena.slot_bytes, self._arena.layer_slice_bytes
        at, num_bytes = first * layer, (end - first) * layer
        for target, peer in zip(push.order.targets, peers, strict=True):
            slots = zip(target.src_slot, target.dst_slot, strict=True)
            descriptors = [Descriptor(src * size + at, dst * size + at, num_bytes) for src, dst in slots]
            try:
                op = self._transport.write(
                    peer,
                    descriptors,
                    traffic=TrafficClass.HANDOFF,
                    deadline_s=push.order.deadline_s,
                    attempt=push.order.attempt,
                )
            except SplashError as problem:
                self._fail(push, f"rank {target.peer.rank}: {problem}")
                return
            push.ops.append(op)
            push.peers.append(_peer(push.order, target))
        push.layers_sent = end

    def _peers(self, push: _PushUnderWay) -> tuple[Peer, ...] | None:
        """Of all targets, in their order; None while one of them has yet to answer, or if it does not."""
        found: list[Peer | None] = []
        for target in push.order.targets:
            try:
                found.append(self._meetings.peer(target.peer.transport))
            except SplashError as problem:
                self._fail(push, f"rank {target.peer.rank}: {problem}")
                return None
        peers = tuple(peer for peer in found if peer is not None)
        return peers if len(peers) == len(found) else None

    def _fail(self, push: _PushUnderWay, error: str) -> None:
        push.error = error
        for op in push.ops:
            op.cancel()

    def _report(self, push: _PushUnderWay, rank: RankId) -> rank_pb2.PushResult:
        states = [op.poll() for op in push.ops]
        errors = [state.error or state.state.value for state in states if state.state is not OpState.DONE]
        now = self._clock()
        started = now if push.started_at is None else push.started_at
        for target in push.order.targets:
            peer = _peer(push.order, target)
            mine = [state for state, there in zip(states, push.peers, strict=True) if there == peer]
            self._counters.ended(
                TrafficClass.HANDOFF,
                peer,
                num_bytes=sum(state.written_bytes for state in mine),
                failed=bool(push.error) or any(state.state is not OpState.DONE for state in mine),
                held_s=started - push.ordered_at,
                moving_s=now - started,
            )
        return rank_pb2.PushResult(
            push=push.order.push,
            rank=rank,
            error=push.error or "; ".join(errors),
            bytes=sum(state.written_bytes for state in states),
            held_s=started - push.ordered_at,
            writing_s=now - started,
        )


def _peer(order: rank_pb2.PushPages, target: rank_pb2.PushTarget) -> str:
    return f"{order.group}/{target.peer.rank}"
