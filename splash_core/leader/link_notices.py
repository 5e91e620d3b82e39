"""Tells whoever writes into a group when its switches need the link: a stream of notices to each of them.

Writers hold their writes back for as long as their own pause allows, so a notice that is late or lost costs
time and nothing else. Invariant: whoever listens hears the newest state, and that a switch is over.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from splash_core.pb import common_pb2
from splash_core.scheduling.step import StepPlan


class LinkNotices:
    """The notices of one group; used on the leader's event loop."""

    def __init__(self) -> None:
        self._notice = common_pb2.LinkNotice()
        self._changed = asyncio.Event()

    def under_way(self, plans: Sequence[StepPlan]) -> None:
        """These steps are with the ranks, oldest first; without any, what was near is near still."""
        near = plans[-1].switch_near if plans else self._notice.near
        manifests = [plan.manifest for plan in plans if plan.manifest is not None]
        switching = any(manifest.takes_the_link for manifest in manifests)
        self._tell(common_pb2.LinkNotice(near=near, switching=switching))

    async def watch(self) -> AsyncIterator[common_pb2.LinkNotice]:
        """The state now, then at every change; states that pass while the listener is slow are left out."""
        told: common_pb2.LinkNotice | None = None
        while True:
            changed = self._changed
            if self._notice != told:
                told = self._notice
                yield told
            else:
                await changed.wait()

    def _tell(self, notice: common_pb2.LinkNotice) -> None:
        if notice != self._notice:
            self._notice = notice
            self._changed.set()
            self._changed = asyncio.Event()
