"""A rank's pushes, off the step loop: a thread with its own connection to the leader starts and reports them.

Steps and pushes may overlap: the leader orders a push only after every rank has reported the step that filled
its pages, and it holds those pages pinned until the report, so no later step or switch touches them. What a
push costs is then its own bytes, never the length of the step that happens to run. Invariant: when this lane
fails, the leader has heard of it, and the step loop goes no further.
"""

import logging
import threading
import time
from types import TracebackType

from splash_core.engine.link_reports import LinkReports
from splash_core.engine.other_switches import OtherSwitches
from splash_core.engine.pushing import Pusher
from splash_core.errors import InvariantBroken
from splash_core.ids import RankId
from splash_core.pb import rank_pb2
from splash_core.rpc.link import PUSH_LANE, RankLink
from splash_core.transport.arbiter import LinkLimits
from splash_core.transport.link import RankLinks

_log = logging.getLogger("splash.rank")
_IDLE_POLL_S = 0.1
_BUSY_POLL_S = 0.001


class PushLane:
    """A context manager: inside the block, pushes are served."""

    def __init__(self, pusher: Pusher, address: str, rank: RankId, links: RankLinks | None = None) -> None:
        """Nothing runs yet.

        Args:
            pusher: the rank's; used by the lane's thread only.
            address: where the leader listens.
            rank: this rank.
            links: of this rank: what they carry is reported, others' switches are told to them.
        """
        self._pusher = pusher
        self._address = address
        self._rank = rank
        links = links or RankLinks.of("cpu", LinkLimits())
        self._reports = LinkReports(links)
        self._others = OtherSwitches(links.phase)
        self._closing = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="push-lane", daemon=True)

    def __enter__(self) -> "PushLane":
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Serve no more. Writes under way are ended by whoever closes the transport."""
        self._closing.set()
        self._thread.join()

    def check(self) -> None:
        """Called by the step loop between frames.

        Raises:
            InvariantBroken: the lane has ended with an exception.
        """
        if self._failure is not None:
            raise InvariantBroken("the push lane of this rank has failed") from self._failure

    def _run(self) -> None:
        # A ZeroMQ socket belongs to one thread, so this one opens its own.
        link = RankLink(self._address, self._rank, lane=PUSH_LANE)
        try:
            # A frame to an unknown identity is an error: the leader must know of this lane in time.
            link.send(rank_pb2.FromRank(pushes_open=True))
            while not self._closing.is_set():
                self._turn(link)
        except Exception as error:  # the main of a thread: whatever it is, the leader must hear of it
            _log.exception("pushes of rank %d failed", self._rank)
            self._failure = error
            failure = rank_pb2.RankFailure(rank=self._rank, error=f"{type(error).__name__}: {error}")
            link.send(rank_pb2.FromRank(failure=failure))
        finally:
            link.close()

    def _turn(self, link: RankLink) -> None:
        message = link.receive(_BUSY_POLL_S if self._pusher.busy else _IDLE_POLL_S)
        if message is not None and message.HasField("link"):
            self._others.hear(message.link)
        elif message is not None:
            self._pusher.start(message.push)
        for report in self._pusher.finished(self._rank):
            link.send(rank_pb2.FromRank(push=report))
        report = self._reports.due(time.monotonic())
        if report is not None:
            link.send(rank_pb2.FromRank(link=report))
