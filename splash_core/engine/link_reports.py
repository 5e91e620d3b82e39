"""What a rank tells its leader of its links, now and then, while it changes."""

from splash_core.pb import common_pb2, rank_pb2
from splash_core.transport.arbiter import ClassUse
from splash_core.transport.link import RankLinks
from splash_core.transport.traffic import TrafficClass

_PERIOD_S = 0.5


class LinkReports:
    """Reports of one rank. Counters never go back while the rank lives."""

    def __init__(self, links: RankLinks) -> None:
        self._links = links
        self._told = rank_pb2.LinkReport()
        self._next_s = 0.0

    def due(self, now_s: float) -> rank_pb2.LinkReport | None:
        """The report to send now; None when nothing has changed, or the last one was a moment ago."""
        if now_s < self._next_s:
            return None
        self._next_s = now_s + _PERIOD_S
        use = self._links.use()
        report = rank_pb2.LinkReport(use=[_to_pb(traffic, use[traffic]) for traffic in TrafficClass])
        if report == self._told or not any(entry.bytes for entry in report.use):
            return None
        self._told = report
        return report


def _to_pb(traffic: TrafficClass, use: ClassUse) -> common_pb2.LinkUse:
    return common_pb2.LinkUse(
        traffic=traffic.name.lower(),
        bytes=use.num_bytes,
        chunks=use.chunks,
        waits=use.waits,
        wait_s=use.wait_s,
    )
