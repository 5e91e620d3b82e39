"""What we and an incarnation of a decode group know of each other: who lives, and which handoffs are open.

The list of open handoffs is told now and then, whole, while there is one. So no single message about an end
has to arrive: what the list does not name is over, and a list that does not come either lets the decode group
fence us. Invariant: a handoff is on the list from before its claim until none of its writes can land.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio

from splash_core.obs.lifeline import ProcessRef
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import decode_pb2, decode_pb2_grpc

_log = logging.getLogger("splash.prefill.handoff")
_LISTS = 5
"""Times that the list is told within what the decode group waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """The decode group as it described itself."""

    group: str
    incarnation: str
    leader: ProcessRef
    sign_within_s: float
    """It fences us when it has heard nothing for so long; 0: it waits until our processes have ended."""


class Contact:
    """Used on the leader's event loop."""

    def __init__(
        self,
        other: Other,
        decode: decode_pb2_grpc.DecodeStub,
        vitals: VitalTasks,
        *,
        writer: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is open; `writer` is our incarnation, `vitals` are of our group."""
        self._vitals = vitals
        self._other = other
        self._decode = decode
        self._writer = writer
        self._clock = clock
        self._heard_at = clock()
        self._open: set[int] = set()
        self._newest = 0
        self._telling: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """True when nothing is open and nothing is left to tell."""
        return not self._open and (self._telling is None or self._telling.done())

    def opened(self, handoff: int) -> None:
        """A handoff is about to claim."""
        self._open.add(handoff)
        self._newest = max(self._newest, handoff)
        if self._other.sign_within_s and (self._telling is None or self._telling.done()):
            name = f"list of handoffs for {self._other.group}"
            self._telling = self._vitals.errand(name, self._tell())

    def over(self, handoff: int) -> None:
        """No write of a handoff can land any more."""
        self._open.discard(handoff)

    def heard(self) -> None:
        """The decode group has answered something."""
        self._heard_at = self._clock()

    def needless(self, since: float) -> str:
        """Why nothing there depends any more on what we say of an end; empty if something may.

        Args:
            since: when we began to say it.
        """
        other = self._other
        if other.leader.is_gone():
            return f"the leader of {other.group} has ended"
        silent_s = self._clock() - max(since, self._heard_at)
        if other.sign_within_s and silent_s > other.sign_within_s:
            return (
                f"{other.group} has not answered for {silent_s:.0f} s; if it lives, it has heard as little "
                "of us, and fences us"
            )
        return ""

    @property
    def bound(self) -> str:
        """What ends the wait for its answer, in words."""
        ends = f"or the end of its leader (pid {self._other.leader.pid})"
        within_s = self._other.sign_within_s
        return f"{ends}, or {within_s:g} s without any answer" if within_s else ends

    async def close(self) -> None:
        """Tell nothing more."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell(self) -> None:
        """Until an empty list has been told."""
        pause_s = self._other.sign_within_s / _LISTS
        while True:
            await asyncio.sleep(pause_s)
            message = decode_pb2.OpenHandoffs(
                incarnation=self._other.incarnation,
                writer=self._writer,
                handoffs=sorted(self._open),
                newest=self._newest,
            )
            try:
                await self._decode.TellHandoffs(message, timeout=pause_s)
                self.heard()
            except grpc.aio.AioRpcError as error:
                _log.info("%s does not hear of our handoffs: %s", self._other.group, error.details())
            if not self._open:
                return
