"""A step that a rank has begun with and not reported: it may still compute, and the next one wait behind it.

Invariant: whoever holds one can ask without waiting whether it has ended; only `finish` waits.
"""

from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from splash_core.scheduling.step import StepResult


class RunningStep(Protocol):
    """What `begin` of an engine returns."""

    @property
    def passed(self) -> bool:
        """True once `finish` will not wait."""
        ...

    def finish(self) -> StepResult:
        """What the rank reports; waits until it has happened. Called once, in the order of the steps."""
        ...


@dataclass(frozen=True, slots=True)
class EndedStep(RunningStep):
    """A step that was computed while it was asked for."""

    result: StepResult

    @property
    @override
    def passed(self) -> bool:
        return True

    @override
    def finish(self) -> StepResult:
        return self.result
