"""A rank's side of handoffs: the arena that peers may write, and the writes under way to theirs.

Invariant: a push is reported exactly once, and only when none of its bytes can land any more, failed or not:
the report is what lets the leader give pages back on both sides.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from splash_core.errors import SplashError
from splash_core.ids import RankId
from splash_core.layout.slots import ArenaMap
from splash_core.pb import rank_pb2
from splash_core.transport.abi import KvAbi
from splash_core.transport.arena_memory import ArenaMemory
from splash_core.transport.base import Descriptor, MemoryHandle, Op, OpState, Transport
from splash_core.transport.factory import open_transport
from splash_core.transport.link import BandwidthArbiter
from splash_core.transport.options import TransportOptions
from splash_core.transport.traffic import TrafficClass


@dataclass(frozen=True, slots=True)
class _Push:
    push: int
    ops: tuple[Op, ...]
    error: str
    """Why some of it was not even started."""


class Pusher:
    """Memory and transport of one rank."""

    def __init__(
        self, transport: Transport, memory: ArenaMemory, handle: MemoryHandle, *, arena: ArenaMap, abi: KvAbi
    ) -> None:
        self._transport = transport
        self._memory = memory
        self._handle = handle
        self._abi = abi
        self._slot_bytes = arena.slot_bytes
        self._under_way: list[_Push] = []

    @classmethod
    @contextmanager
    def open(
        cls, arena: ArenaMap, abi: KvAbi, options: TransportOptions, link: BandwidthArbiter | None = None
    ) -> Iterator["Pusher"]:
        """Allocate and serve a rank's arena; leaving the block waits until nothing moves any more.

        Args:
            arena: the slot map.
            abi: what peers must agree on.
            options: of the transport.
            link: whom writes ask for their turn; None: one without a limit.
        """
        memory = ArenaMemory(arena.arena_bytes)
        transport = open_transport(options, link)
        try:
            handle = transport.register(memory, abi)
            yield cls(transport, memory, handle, arena=arena, abi=abi)
        finally:
            transport.close(drain=False)
            memory.close()

    @property
    def memory(self) -> ArenaMemory:
        """The arena, zero-filled at start."""
        return self._memory

    @property
    def address(self) -> str:
        """Where peers attach."""
        return self._handle.address

    @property
    def busy(self) -> bool:
        """True while pushes are under way."""
        return bool(self._under_way)

    def start(self, order: rank_pb2.PushPages) -> None:
        """Start copying slots to their targets, in order."""
        ops: list[Op] = []
        error = ""
        for target in order.targets:
            slots = zip(target.src_slot, target.dst_slot, strict=True)
            size = self._slot_bytes
            descriptors = [Descriptor(src * size, dst * size, size) for src, dst in slots]
            try:
                peer = self._transport.connect(target.peer.transport, self._abi)
                op = self._transport.write(
                    peer,
                    descriptors,
                    traffic=TrafficClass.HANDOFF,
                    deadline_s=order.deadline_s,
                    attempt=order.push,
                )
            except SplashError as problem:
                error = f"rank {target.peer.rank}: {problem}"
                break
            ops.append(op)
        if error:
            for op in ops:
                op.cancel()
        self._under_way.append(_Push(order.push, tuple(ops), error))

    def finished(self, rank: RankId) -> list[rank_pb2.PushResult]:
        """Reports of pushes that are over and quiet."""
        over = [push for push in self._under_way if all(op.quiesced for op in push.ops)]
        self._under_way = [push for push in self._under_way if push not in over]
        return [_report(push, rank) for push in over]


def _report(push: _Push, rank: RankId) -> rank_pb2.PushResult:
    states = [op.poll() for op in push.ops]
    errors = [state.error or state.state.value for state in states if state.state is not OpState.DONE]
    return rank_pb2.PushResult(
        push=push.push,
        rank=rank,
        error=push.error or "; ".join(errors),
        bytes=sum(state.written_bytes for state in states),
    )
