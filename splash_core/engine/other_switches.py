"""Switches of the groups that a rank writes to, as the link to them sees them.

Invariant: at most one hold is on, and it goes when the other group says so, or the rank ends.
"""

from contextlib import ExitStack

from splash_core.pb import common_pb2
from splash_core.transport.link import BandwidthArbiter


class OtherSwitches:
    """Holds the link for others' collectives."""

    def __init__(self, link: BandwidthArbiter) -> None:
        self._link = link
        self._hold = ExitStack()

    def hear(self, notice: common_pb2.LinkNotice) -> None:
        """What their switches need from now on."""
        hold, self._hold = self._hold, ExitStack()
        if notice.switching:
            self._hold.enter_context(self._link.switching())
        hold.close()
        self._link.announce("other groups", near=notice.near)
