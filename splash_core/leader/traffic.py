"""What a group's ranks have moved, all of them together."""

from collections.abc import Sequence

from splash_core.ids import RankId
from splash_core.scheduling.step import StepResult
from splash_core.transport.classes import TrafficClass
from splash_core.transport.counters import TrafficCounters, TrafficSample, summed


class GroupTraffic:
    """Counts of steps as the leader sees them, and the ranks' own."""

    def __init__(self) -> None:
        self._steps = TrafficCounters()
        self._ranks: dict[RankId, tuple[TrafficSample, ...]] = {}

    def step_ended(self, results: Sequence[StepResult]) -> None:
        """Count what a step has moved between the group's ranks."""
        switched = sum(result.switch_bytes_received for result in results)
        precopied = sum(result.precopy_bytes_received for result in results)
        for traffic, num_bytes in ((TrafficClass.SWITCH, switched), (TrafficClass.PRECOPY, precopied)):
            if num_bytes:
                self._steps.moved(traffic, "", num_bytes=num_bytes)

    def rank_told(self, rank: RankId, samples: tuple[TrafficSample, ...]) -> None:
        """A rank's own counts, which replace those that it told before."""
        self._ranks[rank] = samples

    def samples(self) -> tuple[TrafficSample, ...]:
        """The sum over the group."""
        return summed([self._steps.samples(), *self._ranks.values()])
