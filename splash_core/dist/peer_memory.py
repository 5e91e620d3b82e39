"""Memory that every rank of a group can read: what one-shot collectives and pulling movers work on."""

from typing import Protocol

from torch import Tensor


class PeerMemory(Protocol):
    """Equally large memory on every rank of a group, readable by all."""

    num_bytes: int
    """Of each rank's; a multiple of 32."""

    def of(self, rank: int) -> Tensor:
        """`[num_bytes]` uint8: that rank's memory."""
        ...

    def barrier(self, channel: int = 0) -> None:
        """Everything that any rank wrote before it is visible after it; enqueued like a kernel.

        Barriers of different channels may be under way at once, on streams of their own.
        """
        ...


class Sharing(Protocol):
    """How the ranks of a group take such memory."""

    def take(self, num_bytes: int) -> PeerMemory | None:
        """New memory; None, on all ranks alike, where they cannot read each other's.

        Every rank calls it, for the same size.
        """
        ...
