"""Who may still write into leased pages, and the proof that somebody no longer can.

A lease names its writer by incarnation only; this keeps the processes behind it. Invariant: a writer is
reported gone only when every one of its processes is proven dead on this host, never because time passed.
"""

from dataclasses import dataclass

from splash_core.ids import Incarnation
from splash_core.obs.lifeline import ProcessRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A prefill group's incarnation and the processes that touch leased pages."""

    group: str
    incarnation: Incarnation
    ranks: tuple[ProcessRef, ...]

    def is_gone(self) -> bool:
        """True with proof that none of its processes can write any more."""
        return bool(self.ranks) and all(rank.is_gone() for rank in self.ranks)


class WriterBook:
    """The writers that have claimed leases here."""

    def __init__(self) -> None:
        self._writers: dict[Incarnation, Writer] = {}

    def remember(self, writer: Writer) -> None:
        """Keep the processes of a writer that claims a lease."""
        self._writers[writer.incarnation] = writer

    def take_gone(self) -> tuple[Writer, ...]:
        """Writers that are proven dead since the last call; each is returned once."""
        gone = tuple(writer for writer in self._writers.values() if writer.is_gone())
        for writer in gone:
            del self._writers[writer.incarnation]
        return gone
