"""A rank's pushes, off the step loop: a thread with its own connection to the leader starts and reports them.

Steps and pushes overlap: an order names the step that fills its pages, and the lane holds each layer range
back until the step loop has computed it. The leader keeps the pages pinned until the report, so no later step
or switch touches them. What a push costs is then its own bytes, never the length of the step that happens to
run. Invariant: when this lane fails, so does its rank.
"""

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from splash_core.engine.other_switches import OtherSwitches
from splash_core.engine.progress import StepProgress
from splash_core.engine.pushing import Pusher
from splash_core.ids import RankId
from splash_core.obs.vitals import VitalThreads
from splash_core.pb import rank_pb2
from splash_core.rpc.link import PUSH_LANE, RankLink
from splash_core.rpc.traffic import samples_to_pb
from splash_core.transport.counters import TrafficSample
from splash_core.transport.link import BandwidthArbiter

_IDLE_POLL_S = 0.1
_BUSY_POLL_S = 0.001
_TELL_TRAFFIC_S = 0.2
"""How often counts are told at most."""


class PushLane:
    """A context manager: inside the block, pushes are served."""

    def __init__(
        self,
        pusher: Pusher,
        progress: StepProgress,
        address: str,
        rank: RankId,
        links: Sequence[BandwidthArbiter] = (),
        *,
        vitals: VitalThreads,
    ) -> None:
        """Nothing runs yet.

        Args:
            pusher: the rank's; used by the lane's thread only.
            progress: of the rank's steps.
            address: where the leader listens.
            rank: this rank.
            links: that the pushes use: they are told of other groups' switches.
            vitals: of the rank.
        """
        self._pusher = pusher
        self._progress = progress
        self._address = address
        self._rank = rank
        self._others = OtherSwitches(*links)
        self._closing = threading.Event()
        self._tell_at = 0.0
        self._told: tuple[TrafficSample, ...] = ()
        self._vitals = vitals
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "PushLane":
        """Start serving."""
        self._thread = self._vitals.keep("push lane", self._run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Serve no more. Writes under way are ended by whoever closes the transport."""
        assert self._thread is not None, "left before it was entered"
        self._vitals.release(self._thread)
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        # It asks the device how far the steps are.
        self._pusher.memory.enter_thread()
        # A ZeroMQ socket belongs to one thread, so this one opens its own.
        link = RankLink(self._address, self._rank, lane=PUSH_LANE)
        try:
            # A frame to an unknown identity is an error: the leader must know of this lane in time.
            link.send(rank_pb2.FromRank(pushes_open=True))
            while not self._closing.is_set():
                self._turn(link)
        finally:
            link.close()

    def _turn(self, link: RankLink) -> None:
        message = link.receive(_BUSY_POLL_S if self._pusher.busy else _IDLE_POLL_S)
        if message is not None:
            self._take(message, link)
        self._progress.poll()
        self._pusher.advance(self._progress)
        for report in self._pusher.finished(self._rank):
            link.send(rank_pb2.FromRank(push=report))
        self._tell_traffic(link)

    def _tell_traffic(self, link: RankLink) -> None:
        now = time.monotonic()
        if now < self._tell_at:
            return
        self._tell_at = now + _TELL_TRAFFIC_S
        samples = self._pusher.samples()
        if samples != self._told:
            self._told = samples
            link.send(rank_pb2.FromRank(traffic=rank_pb2.RankTraffic(samples=samples_to_pb(samples))))

    def _take(self, message: rank_pb2.ToRank, link: RankLink) -> None:
        kind = message.WhichOneof("message")
        if kind == "cancel_push":
            self._pusher.cancel(message.cancel_push)
        elif kind == "link":
            self._others.hear(message.link)
        elif kind == "fence":
            self._pusher.fence(message.fence.writer, term=message.fence.term)
            link.send(rank_pb2.FromRank(fenced=message.fence))
        else:
            self._pusher.start(message.push)
