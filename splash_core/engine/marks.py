"""Points of a step that a benchmark may time: the engine names them, whoever measures brings the clock.

Invariant: on a device with streams a mark is made on the stream that computes, so a clock that records
events sees how long that stream stood still.
"""

from collections.abc import Callable
from enum import StrEnum


class StepPoint(StrEnum):
    """Where a step stands. The layer that comes with a point is -1 where none is meant."""

    BEGIN = "begin"
    MOVED = "moved"
    """What a switch does before the step's rows is done (all of it when it is blocking)."""
    WANTED = "wanted"
    """A layer is about to need its state."""
    READY = "ready"
    """The layer's state is in place; it computes until the next layer's WANTED, or END."""
    END = "end"


Marker = Callable[[StepPoint, int], None]
"""Called with a point and a layer."""

NO_LAYER = -1


def no_marks(point: StepPoint, layer: int) -> None:
    """Nobody measures."""
