"""What requests hear of their sequences.

Invariant: events come in the order in which they were put, and nothing comes after an error.
"""

import asyncio
import time
from dataclasses import dataclass, field

from splash_core.errors import SplashError
from splash_core.scheduling.events import FinishedEvent, PrefilledEvent, TokenEvent

SeqEvent = TokenEvent | FinishedEvent | PrefilledEvent


@dataclass(slots=True)
class SequenceStream:
    """What happens to one sequence, as its request sees it."""

    _events: "asyncio.Queue[SeqEvent | SplashError]" = field(default_factory=asyncio.Queue)
    first_step_at: float | None = None
    """When the first step with the sequence began, seconds on the monotonic clock."""

    first_event_at: float | None = None
    """When the first event came."""

    @property
    def wait_s(self) -> float:
        """From the first event to the first step: how long a handoff that has landed waited to run."""
        if self.first_event_at is None or self.first_step_at is None:
            return 0.0
        return max(self.first_step_at - self.first_event_at, 0.0)

    def put(self, event: SeqEvent | SplashError) -> None:
        """Append."""
        if self.first_event_at is None:
            self.first_event_at = time.monotonic()
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
