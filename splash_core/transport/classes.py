"""Classes of traffic on a rank's links."""

from enum import IntEnum


class TrafficClass(IntEnum):
    """Who goes first on a link: smaller is sooner."""

    SWITCH = 0
    HANDOFF = 1
    PRECOPY = 2
