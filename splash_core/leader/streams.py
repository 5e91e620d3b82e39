"""What requests hear of their sequences.

Invariant: events come in the order in which they were put, and nothing comes after an error.
"""

import asyncio
from dataclasses import dataclass, field

from splash_core.errors import SplashError
from splash_core.scheduling.events import FinishedEvent, PrefilledEvent, TokenEvent

SeqEvent = TokenEvent | FinishedEvent | PrefilledEvent


@dataclass(slots=True)
class Stream:
    """What happens to one sequence, as its request sees it."""

    _events: "asyncio.Queue[SeqEvent | SplashError]" = field(default_factory=asyncio.Queue)
    first_step_at: float | None = None
    """When the first step with the sequence began, seconds on the monotonic clock."""

    def put(self, event: SeqEvent | SplashError) -> None:
        """Append."""
        self._events.put_nowait(event)

    async def next(self) -> SeqEvent:
        """The next event; raises the error that ended the sequence."""
        event = await self._events.get()
        if isinstance(event, SplashError):
            raise event
        return event

    def take_ready(self) -> list[SeqEvent]:
        """Events that are there already."""
        ready: list[SeqEvent] = []
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, SplashError):
                self._events.put_nowait(event)
                break
            ready.append(event)
        return ready
