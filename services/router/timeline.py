"""Where the time of one sequence went: the stages that `/admin/requests/{id}/timeline` shows.

Invariant: the stages are differences of consecutive marks, so they add up to the whole.
"""

from collections.abc import Callable
from typing import Any

from services.router.placement import Placement
from splash_core.pb import prefill_pb2

_MARKS = ("entered", "placed", "leased", "first_token", "ended")
_STAGES = ("queue", "lease", "prefill", "decode")


class Timeline:
    """Marks of one sequence, monotonic seconds."""

    def __init__(self, *, request_id: str, clock: Callable[[], float]) -> None:
        self.request_id = request_id
        self._clock = clock
        self._marks: dict[str, float] = {"entered": clock()}
        self._placement: Placement | None = None
        self._prefill: prefill_pb2.PrefillResult | None = None

    def mark(self, name: str) -> None:
        """Note that something happened now."""
        self._marks[name] = self._clock()

    def place(self, placement: Placement) -> None:
        """Note where the sequence goes (again, if it is tried again)."""
        self._placement = placement
        self.mark("placed")

    def prefilled(self, result: prefill_pb2.PrefillResult) -> None:
        """Note what prefill said of its own stages."""
        self._prefill = result

    def end(self) -> None:
        """Note the end, whatever it is."""
        self.mark("ended")

    def to_json(self) -> dict[str, Any]:
        """The stages in seconds; null where the sequence did not get that far."""
        times = [self._marks.get(name) for name in _MARKS]
        stages: dict[str, float | None] = {}
        for stage, begin, end in zip(_STAGES, times, times[1:], strict=False):
            stages[f"{stage}_s"] = None if begin is None or end is None else end - begin
        ended = self._marks.get("ended")
        report: dict[str, Any] = {
            "request": self.request_id,
            "finished": "finished" in self._marks,
            "total_s": None if ended is None else ended - self._marks["entered"],
            "stages": stages,
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
        return report
