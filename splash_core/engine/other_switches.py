"""Switches of the groups that a rank writes to, as the links to them see them.

Invariant: at most one hold is on, and it goes when the other group says so, or the rank ends.
"""

from contextlib import ExitStack

from splash_core.pb import common_pb2
from splash_core.transport.link import BandwidthArbiter


class OtherSwitches:
    """Holds the links for others' collectives."""

    def __init__(self, *links: BandwidthArbiter) -> None:
        self._links = links
        self._hold = ExitStack()

    def hear(self, notice: common_pb2.LinkNotice) -> None:
        """What their switches need from now on."""
        hold, self._hold = self._hold, ExitStack()
        if notice.switching:
            for link in self._links:
                self._hold.enter_context(link.switching())
        hold.close()
        for link in self._links:
            link.announce("other groups", near=notice.near)
