"""The mode `precopied` at a group's step boundaries: begin, go on, commit, call off.

Invariant: slots taken for copies ahead are given back at boundaries only, when no step is under way that
might be writing to them, or with the page; and none is left when no copying is under way.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from splash_core.layout.layout import Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Present
from splash_core.scheduling.mirror import MirrorBook
from splash_core.scheduling.owners import NO_OWNERS, OwnerAssignment, Owners
from splash_core.scheduling.precopy import AheadStep, Precopy
from splash_core.scheduling.precopy_pace import LinkView, PrecopyPace, left_by_handoffs
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.sequence import Roster
from splash_core.scheduling.step import StepResult, TakenRows
from splash_core.switch.manifest import SwitchManifest, SwitchMode


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadRecord:
    """What was copied ahead of a switching step."""

    ready_layers: tuple[int, ...] = ()
    """Layers whose gathered weights are in place."""
    bytes_received: int = 0
    """By all ranks from other ranks."""
    fallback: str = ""
    """Why (the rest of) the switch is overlapped though it was to be precopied; empty if it is not."""
    taken: tuple[TakenRows, ...] = ()
    """Rows to come that the ranks know, and take with the switching step."""

    def mode(self, wished: SwitchMode) -> SwitchMode:
        """How the switching step is executed."""
        return SwitchMode.OVERLAPPED if self.fallback else wished


class CopyingAhead:
    """At most one precopy at a time."""

    def __init__(
        self,
        *,
        roster: Roster,
        residency: Residency,
        present: Present,
        mirrors: MirrorBook,
        owners: OwnerAssignment,
        config: SchedulerConfig,
    ) -> None:
        self._roster = roster
        self._residency = residency
        self._present = present
        self._mirrors = mirrors
        self._owners = owners
        self._config = config
        self._precopy: Precopy | None = None
        self._pace = PrecopyPace(config.precopy_bytes_per_step)

    @property
    def layout(self) -> Layout | None:
        """The layout that copies are made for; None when nothing is copied ahead."""
        return None if self._precopy is None else self._precopy.layout

    @property
    def promised(self) -> Owners:
        """Owners that copies ahead have been made for."""
        return NO_OWNERS if self._precopy is None else self._precopy.promised

    def leave_room(self, link: LinkView, pending_bytes: int) -> None:
        """Before a boundary: the next step's copies leave so many bytes of handoffs their part."""
        shared = link.shared_with(pending_bytes, self._residency.num_ranks)
        self._pace.free_bytes = left_by_handoffs(shared, most=self._config.precopy_bytes_per_step)

    def goes_on(self, layout: Layout, mode: SwitchMode) -> bool:
        """At a boundary: True while the switch to `layout` copies ahead; False when it is due."""
        if mode is not SwitchMode.PRECOPIED:
            return False
        if self._precopy is None:
            self._pace = PrecopyPace(self._config.precopy_bytes_per_step, self._pace.free_bytes)
            self._precopy = Precopy(
                layout,
                roster=self._roster,
                residency=self._residency,
                present=self._present,
                mirrors=self._mirrors,
                owners=self._owners,
                config=self._config,
                pace=self._pace,
            )
        # Gathered weights must stay what they are: from now on no page goes where they are.
        self._residency.avoid_borrowed |= self._precopy.fills
        return not self._precopy.due()

    @property
    def carries_on(self) -> bool:
        """True when the next boundary changes nothing but what the next step copies ahead."""
        precopy = self._precopy
        return precopy is not None and not (precopy.falls_due or precopy.under_weights)

    def clear(self) -> SwitchManifest | None:
        """At a boundary that moves nothing else: clear some slots that weights will fill."""
        return None if self._precopy is None else self._precopy.clear()

    def next_step(self) -> AheadStep | None:
        """After the step's rows have their pages: what the step copies ahead and tells of rows to come."""
        return None if self._precopy is None else self._precopy.next_step()

    def executed(self, results: Seq[StepResult]) -> None:
        """A step has ended on all ranks."""
        if self._precopy is not None:
            self._precopy.bytes_received += sum(result.precopy_bytes_received for result in results)

    def record(self) -> AheadRecord:
        """What has been done for the switch that is due."""
        if self._precopy is None:
            return AheadRecord()
        return AheadRecord(
            ready_layers=self._precopy.ready_layers,
            bytes_received=self._precopy.bytes_received,
            fallback=self._precopy.fallback,
        )

    def told(self) -> tuple[TakenRows, ...]:
        """Rows to come that stand and that the ranks know."""
        return () if self._precopy is None else self._precopy.told()

    def end(self) -> None:
        """At a boundary: no copying any more. Rows to come that have not been taken are given up."""
        self._precopy = None
        self._residency.table.ahead.clear()
