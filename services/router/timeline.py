"""Where the time of one sequence went: the stages that `/admin/requests/{id}/timeline` shows.

    queue      from entry until the prompt is computed: the router's queue, pages in decode, prefill's queue
    prefill    the prompt is computed; its pages leave meanwhile
    transfer   what of the handoff was left when the prompt was computed, until decode has acknowledged it
    wait       for the first token to be told, and, once landed, for decode's first step with the sequence
    decode     the rest, to the end

Three clocks take part. The router's own marks (entered, placed, leased, first token, ended) are consecutive
moments of one monotonic clock and fix the whole. Prefill and decode report durations of their own clocks,
which lie within those marks; they only cut the router's intervals into pieces. Invariant: so the stages of a
sequence that has ended add up to its total exactly, whatever the other clocks say.
"""

from collections.abc import Callable
from typing import Any

from splash_core.dispatch.placement import Placement
from splash_core.pb import decode_pb2, prefill_pb2

STAGES = ("queue_s", "prefill_s", "transfer_s", "wait_s", "decode_s")


class Timeline:
    """Marks of one sequence, monotonic seconds."""

    def __init__(self, *, request_id: str, clock: Callable[[], float]) -> None:
        self.request_id = request_id
        self._clock = clock
        self._marks: dict[str, float] = {"entered": clock()}
        self._placement: Placement | None = None
        self._prefill: prefill_pb2.PrefillResult | None = None
        self._decode: decode_pb2.DecodeFinished | None = None

    def mark(self, name: str) -> None:
        """Note that something happened now."""
        self._marks[name] = self._clock()

    def place(self, placement: Placement) -> None:
        """Note where the sequence goes (again, if it is tried again: what was before counts as queue)."""
        self._placement = placement
        self._prefill = self._decode = None
        self._marks.pop("leased", None)
        self.mark("placed")

    def prefilled(self, result: prefill_pb2.PrefillResult) -> None:
        """Note what prefill said of its own stages."""
        self._prefill = result

    def decoded(self, finished: decode_pb2.DecodeFinished) -> None:
        """Note what decode said of its own."""
        self._decode = finished

    def end(self) -> None:
        """Note the end, whatever it is."""
        self.mark("ended")

    def to_json(self) -> dict[str, Any]:
        """The stages in seconds; null for those of a sequence that has not got so far."""
        ended = self._marks.get("ended")
        report: dict[str, Any] = {
            "request": self.request_id,
            "finished": "finished" in self._marks,
            "total_s": None if ended is None else ended - self._marks["entered"],
            "stages": self._stages(),
            "router": {
                "queue_s": self._between("entered", "placed"),
                "lease_s": self._between("placed", "leased"),
            },
        }
        if self._placement is not None:
            report["placement"] = {
                "prefill": self._placement.prefill,
                "decode": self._placement.decode,
                "reason": self._placement.reason,
            }
        if self._prefill is not None:
            report["prefill"] = {
                "queue_s": self._prefill.queue_s,
                "compute_s": self._prefill.prefill_s,
                "transfer_s": self._prefill.transfer_s,
            }
        if self._decode is not None:
            report["decode"] = {"wait_s": self._decode.wait_s}
        return report

    def _between(self, begin: str, end: str) -> float | None:
        marks = self._marks
        return marks[end] - marks[begin] if begin in marks and end in marks else None

    def _stages(self) -> dict[str, float | None]:
        """Cut the time from entry to the end, or to the newest mark, at the moments that are known."""
        entered, leased, first = (self._marks.get(name) for name in ("entered", "leased", "first_token"))
        assert entered is not None  # the first mark is made at once
        ended = self._marks.get("ended")
        if leased is None:
            return dict.fromkeys(STAGES) | ({} if ended is None else {"queue_s": ended - entered})
        computed = first if first is not None else ended
        if computed is None:
            return dict.fromkeys(STAGES) | {"queue_s": leased - entered}
        parts = self._prefill or prefill_pb2.PrefillResult(prefill_s=computed - leased)
        began, prefilled, landed = _cuts(leased, (parts.queue_s, parts.prefill_s, parts.transfer_s), computed)
        wait_s = computed - landed
        decode_s = None
        if first is not None and ended is not None:
            waited = min(self._decode.wait_s if self._decode is not None else 0.0, ended - first)
            wait_s, decode_s = wait_s + waited, ended - first - waited
        lengths = (began - entered, prefilled - began, landed - prefilled, wait_s, decode_s)
        return dict(zip(STAGES, lengths, strict=True))


def _cuts(begin: float, lengths: tuple[float, ...], end: float) -> tuple[float, ...]:
    """Moments after each of the lengths, one after the other from `begin`; none after `end`."""
    moments: list[float] = []
    for length in lengths:
        begin = min(begin + max(length, 0.0), end)
        moments.append(begin)
    return tuple(moments)
