"""A rank's arena as transports see it, wherever it lies: what peers are handed, and how bytes get there.

There is host memory (`arena_memory`, `host_copies`) and that of devices (`device_memory`), each with copies
of its own; `kinds` names them. Invariant: memory that is mapped somewhere exists, also after its process has
ended, so a copy never hits memory that is gone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from typing_extensions import override

from splash_core.errors import Conflict

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a peer needs to map memory; whoever has it closes the descriptor."""

    kind: str
    """`MemoryKind.name`."""
    num_bytes: int
    fd: int


class Copy(NamedTuple):
    """Bytes from one address of this process to another."""

    target: int
    source: int
    num_bytes: int


class Landing(Protocol):
    """Copies under way."""

    @property
    def over(self) -> bool:
        """True once all bytes are where they should be; never waits: a device may never get there."""
        ...


class Landed(Landing):
    """Of copies that were over when they were asked for."""

    @property
    @override
    def over(self) -> bool:
        return True


class Region:
    """Memory at an address of this process."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self._address = address
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return self._num_bytes

    @property
    def address(self) -> int:
        """Where it begins in this process."""
        return self._address


class Target(Region, ABC):
    """A peer's memory, mapped here."""

    @abstractmethod
    def release(self) -> None:
        """Unmap it: nothing is being copied there, and nothing will be. Idempotent."""


class Copies(Protocol):
    """How one rank's bytes get into memory that peers offer; copies land in the order in which they start."""

    def enter_thread(self) -> None:
        """Called first in each thread that uses this."""
        ...

    def attach(self, offer: Offer) -> Target:
        """Map what a peer offers; the descriptor stays the caller's.

        Raises:
            Conflict: it is memory of another kind.
            Unavailable: it cannot be mapped from here.
        """
        ...

    def start(self, copies: Sequence[Copy]) -> Landing:
        """Begin to copy; it is over when all of them are."""
        ...


class Memory(Region, ABC):
    """An arena's memory, zero-filled at start."""

    @property
    @abstractmethod
    def bytes_B(self) -> "Tensor":
        """All bytes, uint8, on the device where the memory lies."""

    @abstractmethod
    def offer(self) -> Offer:
        """What to hand to peers, with a descriptor of its own."""

    @abstractmethod
    def copies(self) -> Copies:
        """What copies out of this memory."""

    @abstractmethod
    def enter_thread(self) -> None:
        """Called first in each thread that asks the device something."""

    @abstractmethod
    def touch(self) -> None:
        """Have all of it backed now, so that no writer waits for that later."""

    @abstractmethod
    def close(self) -> None:
        """Offer it no more. What is mapped stays so."""


def check_kind(offer: Offer, ours: str) -> None:
    """Refuse memory of another kind.

    Args:
        offer: a peer's.
        ours: `MemoryKind.name` of our own.

    Raises:
        Conflict: names both, and the remedy.
    """
    if offer.kind != ours:
        raise Conflict(
            f"the peer's arena is {offer.kind} memory, ours is {ours} memory; give both groups one --device"
        )
