"""What a phase adds to the leader's loop, which is the same for prefill and decode."""

from dataclasses import dataclass
from typing import Protocol

from splash_core.errors import GroupFailed
from splash_core.policy.snapshot import WaitingSequence
from splash_core.scheduling.step import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a group has to wait for before it is done with something, for audits."""

    subject: str
    """What waits: a writer, or a lease."""
    waits_for: str
    age_s: float


class PhasePart(Protocol):
    """What a phase's service adds to the loop."""

    def queued(self) -> tuple[WaitingSequence, ...]:
        """Requests that wait outside the scheduler."""
        ...

    def before_step(self) -> None:
        """Called at each step boundary: admit what has room now."""
        ...

    def planned(self, plan: StepPlan) -> None:
        """Called with each step, before the ranks have it."""
        ...

    def failed(self, error: GroupFailed) -> None:
        """Called once when the group has ended: tell those who wait outside the scheduler."""
        ...

    def waits(self) -> tuple[Wait, ...]:
        """What other groups have yet to do."""
        ...


class NoPart:
    """A phase that keeps no queue of its own."""

    def queued(self) -> tuple[WaitingSequence, ...]:
        """Nobody waits."""
        return ()

    def before_step(self) -> None:
        """Nobody to admit."""

    def planned(self, plan: StepPlan) -> None:
        """Nothing goes with it."""

    def failed(self, error: GroupFailed) -> None:
        """Nobody to tell."""

    def waits(self) -> tuple[Wait, ...]:
        """For nobody."""
        return ()
