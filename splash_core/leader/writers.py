"""Who may still write into leased pages, and the proof that somebody no longer can.

A lease names its writer by incarnation and handoff; this keeps what stands behind an incarnation:

    heard      it claims, completes, abandons or tells its open handoffs
    fencing    its processes are proven dead, or nothing was heard of it for too long: our ranks are ending
               its sessions, and it may claim nothing
    fenced     all ranks have answered: what it had claimed is free, and its next term begins

Invariant: what a writer has claimed is freed only when `WriterFence.end` has returned for it, never because
time passed.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from splash_core.errors import Conflict, GroupFailed
from splash_core.ids import Incarnation
from splash_core.leader.part import Wait
from splash_core.leader.ranks import RankPool
from splash_core.obs.lifeline import ProcessRef
from splash_core.scheduling.writers import group_of

_log = logging.getLogger("splash.leader")
_MOST_AT_ONCE_S = 1.0
"""A look counts no more silence than this: a leader that was held up has not listened meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A prefill group's incarnation and the processes that touch leased pages."""

    group: str
    incarnation: Incarnation
    ranks: tuple[ProcessRef, ...]

    def is_gone(self) -> bool:
        """True with proof that none of its processes runs any more."""
        return bool(self.ranks) and all(rank.is_gone() for rank in self.ranks)


class WriterFence(Protocol):
    """How a transport keeps a writer from writing."""

    @property
    def silence_s(self) -> float:
        """A living writer of which nothing is heard for so long may be ended; infinite: it cannot be."""
        ...

    async def end(self, writer: Incarnation, *, term: int) -> None:
        """Return when nothing that a writer has begun in a term can land, and it can begin nothing in it."""
        ...

    def owed(self, writer: Incarnation) -> str:
        """What `end` still waits for."""
        ...


class DeathIsFence:
    """Over shared memory: a writer has mapped our pages; only its end ends its writes, and does at once."""

    silence_s = math.inf

    async def end(self, writer: Incarnation, *, term: int) -> None:
        """Its processes have ended."""

    def owed(self, writer: Incarnation) -> str:
        """Nothing."""
        del writer
        return "nothing"


class RanksFence:
    """Over Mooncake: our ranks own the receiving end of every session, and end those of a writer."""

    def __init__(self, ranks: RankPool, *, silence_s: float) -> None:
        self._ranks = ranks
        self.silence_s = silence_s

    async def end(self, writer: Incarnation, *, term: int) -> None:
        """All ranks have ended its sessions; also of a dead writer, whose bytes may wait in buffers."""
        await self._ranks.fence(writer, term=term)

    def owed(self, writer: Incarnation) -> str:
        """Ranks that have not answered."""
        return f"ranks {', '.join(map(str, self._ranks.fence_owed(writer)))} to end its sessions"


@dataclass(slots=True, kw_only=True)
class _Known:
    writer: Writer
    term: int = 1
    silent_s: float = 0.0
    """While it has claims."""
    fencing: asyncio.Task[None] | None = None
    why: str = ""
    """It is being fenced."""


class WriterWatch:
    """All writers that have claimed leases here; used on the leader's event loop."""

    def __init__(
        self,
        fence: WriterFence,
        *,
        writers: Callable[[], Collection[str]],
        free: Callable[[Incarnation], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nobody is known yet.

        Args:
            fence: of the group's transport.
            writers: names of all that have claims now.
            free: called when a writer can no longer write what it has claimed.
            clock: seconds, monotonic.
        """
        self._fence = fence
        self._writers = writers
        self._free = free
        self._clock = clock
        self._looked = clock()
        self._known: dict[Incarnation, _Known] = {}

    def check(self, incarnation: Incarnation) -> None:
        """Return if a writer may claim now.

        Raises:
            Conflict: it is being fenced.
        """
        known = self._known.get(incarnation)
        if known is not None and known.fencing is not None:
            raise Conflict(f"writer: {known.writer.group} is being fenced, {known.why}; claim again later")

    def claimed(self, writer: Writer) -> int:
        """A writer has claimed a lease; returns the term in which it may write."""
        known = self._known.setdefault(writer.incarnation, _Known(writer=writer))
        known.silent_s = 0.0
        return known.term

    def heard(self, incarnation: Incarnation) -> None:
        """A writer has said something."""
        known = self._known.get(incarnation)
        if known is not None:
            known.silent_s = 0.0

    def look(self) -> None:
        """Begin to fence those with claims that are dead, or silent for too long; to be called regularly."""
        now = self._clock()
        passed, self._looked = min(now - self._looked, _MOST_AT_ONCE_S), now
        holding = self._holding()
        for incarnation, known in tuple(self._known.items()):
            if known.fencing is not None:
                continue
            gone = known.writer.is_gone()
            if incarnation not in holding:
                known.silent_s = 0.0
                if gone:
                    del self._known[incarnation]
                continue
            known.silent_s += passed
            if gone:
                self._begin(known, "its processes have ended")
            elif known.silent_s > self._fence.silence_s:
                self._begin(known, f"nothing was heard of it for {self._fence.silence_s:g} s")

    def waits(self) -> tuple[Wait, ...]:
        """What those with claims have yet to do."""
        holding = self._holding()
        return tuple(
            Wait(
                subject=f"writer {known.writer.group} ({incarnation})",
                waits_for=self._waits_for(known),
                age_s=known.silent_s,
            )
            for incarnation, known in self._known.items()
            if incarnation in holding
        )

    async def close(self) -> None:
        """Wait for nobody any more."""
        tasks = [known.fencing for known in self._known.values() if known.fencing is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _holding(self) -> frozenset[str]:
        return frozenset(map(group_of, self._writers()))

    def _waits_for(self, known: _Known) -> str:
        if known.fencing is not None:
            return f"{self._fence.owed(known.writer.incarnation)} ({known.why})"
        if math.isinf(self._fence.silence_s):
            return "its word that it writes no more, or proof that its processes have ended"
        return f"its word that it writes no more; it is fenced when silent for {self._fence.silence_s:g} s"

    def _begin(self, known: _Known, why: str) -> None:
        known.why = why
        known.fencing = asyncio.create_task(self._end(known))

    async def _end(self, known: _Known) -> None:
        writer = known.writer
        _log.warning("writer %s (%s) is fenced: %s", writer.group, writer.incarnation, known.why)
        try:
            await self._fence.end(writer.incarnation, term=known.term)
            self._free(writer.incarnation)
        except GroupFailed as error:
            _log.info("writer %s is not fenced: %s", writer.group, error)
            return
        except Exception:
            # Its pages stay as they are; the next look begins anew.
            _log.exception("writer %s (%s) could not be fenced", writer.group, writer.incarnation)
            known.fencing = None
            return
        known.term, known.silent_s, known.fencing = known.term + 1, 0.0, None
