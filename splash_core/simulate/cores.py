"""Cores that groups of one host share: while more ranks compute than there are cores, each is slower.

Invariant: a step's work is what it takes alone; on a core of its own, work passes as time does, exactly.
"""

from collections.abc import Callable


class Cores:
    """Those of the host that all groups run on; None: every rank has its own."""

    def __init__(self, count: int | None, *, ranks: int) -> None:
        self._count = count
        self._ranks = ranks
        self._busy: list[CoreClock] = []

    def enter(self, clock: "CoreClock", now: float) -> None:
        """One more group computes."""
        if self._count is not None:
            self._busy.append(clock)
            self._share(now)

    def leave(self, clock: "CoreClock", now: float) -> None:
        """It has ended its steps."""
        if self._count is not None:
            self._busy.remove(clock)
            self._share(now)

    def _share(self, now: float) -> None:
        assert self._count is not None
        rate = min(1.0, self._count / (self._ranks * max(len(self._busy), 1)))
        for clock in self._busy:
            clock.run_at(rate, now)


class CoreClock:
    """One group's work over time, while it has steps under way.

    Args:
        cores: of its host.
        repaced: called when what is under way will end at another time than before.
    """

    def __init__(self, cores: Cores, repaced: Callable[[], None]) -> None:
        self._cores = cores
        self._repaced = repaced
        self._rate = 1.0
        self._since_s = self._work_s = 0.0

    def begin(self, now: float) -> None:
        """Steps begin; their work is counted from this moment."""
        self._rate, self._since_s, self._work_s = 1.0, now, now
        self._cores.enter(self, now)

    def end(self, now: float) -> None:
        """They have ended."""
        self._cores.leave(self, now)

    def run_at(self, rate: float, now: float) -> None:
        """From now on so much work is done in a second."""
        if rate != self._rate:
            self._work_s, self._since_s, self._rate = self.work(now), now, rate
            self._repaced()

    def work(self, now: float) -> float:
        """The moment that it would be, had the steps a core of their own for each rank."""
        if self._rate == 1.0 and self._since_s == self._work_s:
            return now
        return self._work_s + (now - self._since_s) * self._rate

    def when(self, work: float) -> float:
        """The moment at which that work is done, as things are."""
        if self._rate == 1.0 and self._since_s == self._work_s:
            return work
        return self._since_s + (work - self._work_s) / self._rate
