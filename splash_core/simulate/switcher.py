"""Switches of a group that counts pages: at once, or copied ahead; as `scheduling.switching` has them.

Invariant: at most one switch is on its way, and while it copies ahead steps are single.
"""

from splash_core.layout.layout import Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Present
from splash_core.scheduling.owners import NO_OWNERS
from splash_core.scheduling.precopy_pace import LinkView, PrecopyPace, left_by_handoffs
from splash_core.scheduling.sequence import Roster
from splash_core.simulate.ahead import CountedAhead, Units
from splash_core.simulate.counts import CountedHolding
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.machine import Rest
from splash_core.simulate.placing import Placing
from splash_core.switch.manifest import SwitchMode


class CountedSwitcher:
    """The switches of one group."""

    def __init__(
        self,
        *,
        roster: Roster,
        counts: CountedHolding,
        present: Present,
        placing: Placing,
        fleet: Fleet,
        config: SchedulerConfig,
    ) -> None:
        self._roster = roster
        self._counts = counts
        self._present = present
        self._placing = placing
        self._model = fleet.model
        self._rate = config.precopy_bytes_per_step
        self._pace = PrecopyPace(self._rate)
        self._wish: Layout | None = None
        self._ahead: CountedAhead | None = None

    @property
    def copying(self) -> bool:
        """True while a switch copies ahead, or is about to."""
        return self._wish is not None

    def switch(self, layout: Layout) -> bool:
        """Change layout with the next step; False, and no change, where histories do not fit."""
        return self._placing.switch(layout) is not None

    def copy_ahead(self, layout: Layout) -> None:
        """Change layout once most is copied ahead; the present layout calls that off."""
        self._wish = None if self._present.runs(layout) else layout

    def leave_room(self, link: LinkView, pending_bytes: int) -> None:
        """Copies of the next step leave so many bytes of handoffs, of all ranks, their part of links."""
        shared = link.shared_with(pending_bytes, self._counts.num_ranks)
        self._pace.free_bytes = left_by_handoffs(shared, most=self._rate)

    def at_boundary(self) -> Rest | None:
        """Copy on, or make the switch that is due: what it still moves; None when none is made."""
        if self._wish is None:
            self._end()
            return None
        if self._ahead is None:
            self._pace = PrecopyPace(self._rate, self._pace.free_bytes)
            self._ahead = self._begin(self._wish)
        self._counts.clear_for = self._wish
        if not self._ahead.due():
            return None
        ahead, layout, units = self._ahead, self._wish, self._units(self._wish)
        self._wish = None
        stand, made = self._counts.ahead.stand, self._counts.ahead.take()
        pages = self._placing.switch(layout, promised=ahead.promised if stand else NO_OWNERS, made=made)
        fallback = bool(ahead.fallback)
        if pages is None and stand:
            pages, fallback = self._placing.switch(layout), True
        self._end()
        if pages is None:
            return None
        mode = SwitchMode.OVERLAPPED if fallback else SwitchMode.PRECOPIED
        return Rest(mode, units.rest(ahead.missing_layers, pages))

    def next_step(self) -> int | None:
        """After the step's rows have their pages: bytes that it copies ahead; None: nothing is done."""
        return None if self._ahead is None else self._ahead.next_step()

    def _begin(self, layout: Layout) -> CountedAhead:
        return CountedAhead(
            layout,
            roster=self._roster,
            counts=self._counts,
            present=self._present,
            owners=self._placing.owners,
            pace=self._pace,
            rate=self._rate,
            units=self._units(layout),
        )

    def _end(self) -> None:
        self._ahead = None
        self._counts.ahead.take()
        self._counts.clear_for = None

    def _units(self, layout: Layout) -> Units:
        return Units.of(self._model, self._counts.page_size, self._present.layout, layout)
