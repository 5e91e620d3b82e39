"""A rank's steps as its links see them: a switch's collectives are announced, what they moved is counted.

Collectives ask nobody for their turn, for all ranks must make them in one order; so others on the same link
are told to stand back. Invariant: an announced switch ends with its step, however that ends.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from typing_extensions import override

from splash_core.engine.progress import StepProgress
from splash_core.engine.running import RunningStep
from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.transport.classes import TrafficClass
from splash_core.transport.link import BandwidthArbiter


class StepEngine(Protocol):
    """What computes a rank's steps: the real engine, or the one without weights."""

    @property
    def progress(self) -> StepProgress:
        """How far it is."""
        ...

    def begin(self, plan: StepPlan) -> RunningStep:
        """Begin with one plan."""
        ...


class LinkedEngine(StepEngine):
    """An engine whose steps the arbiters of the links that its collectives may use know of."""

    def __init__(self, engine: StepEngine, *links: BandwidthArbiter) -> None:
        self._engine = engine
        self._links = links

    @property
    @override
    def progress(self) -> StepProgress:
        return self._engine.progress

    @override
    def begin(self, plan: StepPlan) -> RunningStep:
        for link in self._links:
            link.announce("own group", near=plan.switch_near)
        with ExitStack() as hold:
            if plan.manifest is not None and plan.manifest.takes_the_link:
                for link in self._links:
                    hold.enter_context(link.switching())
            step = self._engine.begin(plan)
            return _LinkedStep(step, self._links, hold.pop_all())


class _LinkedStep(RunningStep):
    """A step under way, and the hold on the links that it has if it carries a switch."""

    def __init__(self, step: RunningStep, links: Sequence[BandwidthArbiter], hold: ExitStack) -> None:
        self._step = step
        self._links = links
        self._hold = hold

    @property
    @override
    def passed(self) -> bool:
        return self._step.passed

    @override
    def finish(self) -> StepResult:
        with self._hold:
            result = self._step.finish()
        for link in self._links:
            link.charge(TrafficClass.SWITCH, result.switch_bytes_received)
            link.charge(TrafficClass.PRECOPY, result.precopy_bytes_received)
        return result
