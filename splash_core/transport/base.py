"""What moves bytes between the arenas of two groups: one-sided writes into memory that a peer registered.

The interface is what Mooncake can honour and what the fence needs: an operation may be over for its caller
(failed, cancelled, late) while bytes still land. Only `quiesced` says that they do not, and nobody reuses
the destination before. Invariant of every backend: `quiesced` never goes back to False.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from splash_core.transport.abi import KvAbi
from splash_core.transport.classes import TrafficClass
from splash_core.transport.memory import Memory


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Copy `num_bytes` from `src` of the local registered memory to `dst` of the peer's (byte offsets)."""

    src: int
    dst: int
    num_bytes: int

    def cut(self, most: int) -> Iterator["Descriptor"]:
        """The same bytes in the same order, in equal parts of at most `most`; nothing if there are none.

        A short rest would cost a turn at the link of its own.
        """
        parts = max(-(-self.num_bytes // most), 1)
        size = max(-(-self.num_bytes // parts), 1)
        for start in range(0, self.num_bytes, size):
            yield Descriptor(self.src + start, self.dst + start, min(size, self.num_bytes - start))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHandle:
    """Registered memory as a peer sees it; `address` is all that it needs to connect."""

    address: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A connected peer: it shares our ABI and has `num_bytes` of memory to write to."""

    address: str
    num_bytes: int


class OpState(StrEnum):
    """Where an operation stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True when the state changes no more."""
        return self in (OpState.DONE, OpState.FAILED, OpState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStatus:
    """A moment's view of an operation."""

    state: OpState
    written_bytes: int
    error: str = ""
    """Why it failed."""


class Op(Protocol):
    """One `write` under way. Safe to ask from any thread."""

    @property
    def attempt(self) -> int:
        """The attempt that the caller named, for its fences."""
        ...

    def poll(self) -> OpStatus:
        """How it stands, without waiting."""
        ...

    def wait(self, timeout_s: float) -> OpStatus:
        """Wait until the state is final or the time is up; look at the state to know which."""
        ...

    def cancel(self) -> None:
        """Ask for no further bytes. Its state becomes final soon; `quiesced` says when bytes have stopped."""
        ...

    @property
    def quiesced(self) -> bool:
        """True when no further byte of this operation will land."""
        ...


class Transport(Protocol):
    """One rank's way to other groups' memory."""

    def register(self, memory: Memory, abi: KvAbi) -> MemoryHandle:
        """Make `memory` the source of our writes and let peers of equal ABI write into it. Once."""
        ...

    def connect(self, address: str, abi: KvAbi) -> Peer:
        """Prepare writes to the memory at `address` (again: the same peer).

        Raises:
            Conflict: its ABI differs; the message holds the diff.
            Unavailable: nobody answers there.
        """
        ...

    def connected(self, address: str) -> Peer | None:
        """The peer at `address` if it can be written to without asking it; never waits."""
        ...

    def write(
        self,
        peer: Peer,
        descriptors: Sequence[Descriptor],
        *,
        traffic: TrafficClass,
        deadline_s: float,
        attempt: int,
    ) -> Op:
        """Start copying; the descriptors are written in order.

        Args:
            peer: from `connect`.
            descriptors: checked against both memories before the first byte moves.
            traffic: whose turn comes first when operations compete.
            deadline_s: seconds from now after which the operation fails.
            attempt: carried by the operation.

        Raises:
            InvariantBroken: a descriptor leaves either memory.
        """
        ...

    def fence(self, writer: str, *, term: int) -> None:
        """End what a writing group has begun into our memory, up to a term of its, and let it begin no more.

        When it returns, no byte of that can land any more; nobody else's writes are touched. Idempotent.

        Args:
            writer: incarnation of the group.
            term: this one and earlier ones.

        Raises:
            InvariantBroken: peers write into this memory by themselves, so only their death ends that.
        """
        ...

    def close(self, *, drain: bool) -> None:
        """Finish (`drain`) or cancel what is under way, wait until all is quiet, then let go of peers."""
        ...
