"""The simulated clock: what happens next, in order of time and of rank among equals."""

import heapq
from collections.abc import Callable
from enum import IntEnum

from splash_core.errors import ConfigError

MOST_S = 2.0**33
"""272 years. Up to here a float tells microseconds apart; beyond it steps begin to take no time at all."""


class EventOrder(IntEnum):
    """Among events of one moment, which goes first: steps end after whatever came meanwhile."""

    ARRIVAL = 0
    LANDING = 1
    BOUNDARY = 2


class Agenda:
    """Actions by time; `now` is the time of the one that runs, and never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._entries: list[tuple[float, EventOrder, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, order: EventOrder, action: Callable[[], None]) -> None:
        """Do something at a time that has not passed.

        Raises:
            ConfigError: it is so far away that the clock cannot tell steps apart there.
        """
        if not when <= MOST_S:  # NaN neither
            raise ConfigError(
                f"something would happen at {when:.3g} s, and the simulated clock tells steps apart up to "
                f"{MOST_S:.3g} s only; let requests come faster (--rate, --speed) or be shorter (--lengths), "
                "or handoffs be faster (--handoff-gbps)"
            )
        self._count += 1
        heapq.heappush(self._entries, (max(when, self.now), order, self._count, action))

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._entries:
            self.now, _, _, action = heapq.heappop(self._entries)
            action()
