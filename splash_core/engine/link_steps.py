"""A rank's steps as its links see them: a switch's collectives are announced, what they moved is counted.

Collectives ask nobody for their turn, for all ranks must make them in one order; so others on the same link
are told to stand back. Invariant: an announced switch ends with its step, however that ends.
"""

from typing import Protocol

from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.transport.link import BandwidthArbiter
from splash_core.transport.traffic import TrafficClass


class Engine(Protocol):
    """What computes a rank's steps: the real engine, or the one without weights."""

    def step(self, plan: StepPlan) -> StepResult:
        """Execute one plan."""
        ...


class LinkedEngine:
    """An engine whose steps the arbiter of its group's link knows of."""

    def __init__(self, engine: Engine, link: BandwidthArbiter) -> None:
        self._engine = engine
        self._link = link

    def step(self, plan: StepPlan) -> StepResult:
        """Execute one plan."""
        self._link.announce("own group", near=plan.switch_near)
        if plan.manifest is None or not plan.manifest.takes_the_link:
            result = self._engine.step(plan)
        else:
            with self._link.switching():
                result = self._engine.step(plan)
        self._link.charge(TrafficClass.SWITCH, result.switch_bytes_received)
        self._link.charge(TrafficClass.PRECOPY, result.precopy_bytes_received)
        return result
