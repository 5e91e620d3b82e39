"""What shares a rank's links. Invariant: the order of the classes is the order of their urgency."""

from enum import IntEnum


class TrafficClass(IntEnum):
    """Who goes first on a link: smaller is sooner."""

    SWITCH = 0
    HANDOFF = 1
    PRECOPY = 2
