"""Switching decode steps: ordinary steps, then what the scheduler makes of a switch, then ordinary steps.

The leader's own scheduler plans, so that each mode is measured as it is served, copying ahead included.
Invariant: every window begins with fresh histories in the direction's source.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from services.bench.churn import AheadBooks, Churn
from services.bench.decode_group import DecodeGroup, SwitchPlans, no_churn
from services.bench.rig import Rig
from services.bench.settings import AHEAD_ROOM, SwitchSettings, sizes
from services.bench.sizing import LargestCell
from services.bench.switch_rows import ChurnRecord, Direction, SwitchCell, Window, window_fields
from splash_core.errors import Infeasible
from splash_core.layout.layout import Layout
from splash_core.scheduling.buckets import decode_buckets
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.roles import Role
from splash_core.switch.chunks import chunk_bytes
from splash_core.switch.manifest import SwitchMode

CHURN = "churn"
"""Beside the modes: precopied while requests come and go."""


class DecodeSwitches:
    """See the module.

    Args:
        rig: the rank.
        settings: of the benchmark.
        demand: its largest cell.
    """

    def __init__(self, rig: Rig, settings: SwitchSettings, demand: LargestCell) -> None:
        self._rig = rig
        self._ordinary = settings.ordinary
        self._churn_every = settings.churn_every
        self._output = 2 * settings.ordinary + AHEAD_ROOM
        self._group = DecodeGroup(
            rig.spec,
            rig.arena,
            rig.group.layout,
            SchedulerConfig(
                role=Role.DECODE,
                layouts=tuple(demand.layouts),
                max_running=demand.batch,
                staging_bytes=chunk_bytes(settings.staging_bytes),
                precopy_bytes_per_step=settings.precopy_bytes_per_step,
            ),
        )
        for layout in demand.layouts:
            rig.record_decode(layout, recorded_rows(sizes(settings.batch, "--batch"), settings.ranks))
        self._cell: tuple[int, int] = (0, 0)
        self._windows: dict[tuple[Direction, str], list[Window]] = {}
        self._refusals: dict[Direction, str] = {}
        """Of switches amid churn."""

    def place(self, cell: SwitchCell, directions: Sequence[Direction]) -> None:
        """Histories in the first layout that holds them, filled once: later windows find finite rows.

        Raises:
            Infeasible: none does.
        """
        self._cell = cell.batch, cell.context
        self._windows, self._refusals = {}, {}
        reasons: list[str] = []
        for layout in dict.fromkeys(source for source, _ in directions):
            try:
                self._begin(layout)
            except Infeasible as refusal:
                reasons.append(str(refusal))
                continue
            self._fill()
            return
        raise Infeasible("; ".join(reasons))

    def repeat(self, direction: Direction, modes: Sequence[SwitchMode], *, counts: bool) -> None:
        """One window in each mode, and with churn where it is asked for.

        Raises:
            Infeasible: the source does not hold the histories, or the scheduler refuses the switch.
        """
        for mode in modes:
            self._keep(direction, mode, self._window(direction, mode), counts=counts)
            if mode is not SwitchMode.PRECOPIED or not self._churn_every:
                continue
            try:
                self._keep(direction, CHURN, self._churned(direction), counts=counts)
            except Infeasible as refusal:
                # Requests that came meanwhile may have left no room: that is a finding, not the end.
                self._refusals[direction] = str(refusal)

    def rows(self, direction: Direction) -> Mapping[str, dict[str, Any]]:
        """Fields of a row for each mode."""
        refused = {CHURN: {"reason": self._refusals[direction]}} if direction in self._refusals else {}
        windows = {mode: kept for (of, mode), kept in self._windows.items() if of == direction}
        return refused | {mode: window_fields(of_mode) for mode, of_mode in windows.items()}

    def _keep(self, direction: Direction, mode: str, window: Window, *, counts: bool) -> None:
        if counts:
            self._windows.setdefault((direction, mode), []).append(window)

    def _begin(self, layout: Layout) -> None:
        """Fresh histories in `layout`."""
        group, rig = self._group, self._rig
        group.clear()
        if group.layout is not layout:
            rig.run(group.switch(layout, SwitchMode.BLOCKING).switching)
        batch, context = self._cell
        for plan in group.place(batch, context, output=self._output):
            rig.run(plan)

    def _churned(self, direction: Direction) -> Window:
        """A window in mode `precopied` in which requests come and go until the switching step."""
        batch, context = self._cell
        churn = Churn(
            group=self._group, every=self._churn_every, most=batch, context=context, output=self._output
        )
        return self._window(direction, SwitchMode.PRECOPIED, churn)

    def _window(self, direction: Direction, mode: SwitchMode, churn: Churn | None = None) -> Window:
        source, destination = direction
        self._begin(source)
        # One step more in front: its interval begins at a common start, not at the end of a step.
        before = self._group.steps(self._ordinary + 1)
        began = time.perf_counter()
        try:
            switch = self._group.switch(destination, mode, churn or no_churn)
        except Infeasible:
            # Steps that are planned and not executed end with their requests.
            self._group.clear()
            raise
        plan_ms = (time.perf_counter() - began) * 1e3
        record = churn and self._record(churn, switch)
        after = self._group.steps(self._ordinary)
        run = self._rig.intervals([*before, *switch.ahead, switch.switching, *after])
        at = len(before) + len(switch.ahead)
        return Window(
            before=run.ms[1 : len(before)],
            ahead=run.ms[len(before) : at],
            switching=run.ms[at],
            after=run.ms[at + 1 :],
            mode=switch.switching.mode,
            replayed=run.replayed,
            switching_replayed=run.replayed[at],
            received_bytes=run.moved_bytes[at],
            ahead_bytes=run.ahead_bytes,
            plan_ms=plan_ms,
            churn=record,
        )

    def _record(self, churn: Churn, switch: SwitchPlans) -> ChurnRecord:
        books = AheadBooks.of(switch, self._rig.arena, self._group.live_pages)
        return ChurnRecord(
            cancelled=churn.cancelled,
            finished=churn.finished,
            admitted=churn.admitted,
            turned_away=churn.turned_away,
            copied_bytes=books.copied_bytes,
            invalidated_bytes=books.invalidated_bytes,
            recopied_bytes=books.recopied_bytes,
            fallback=switch.fallback,
        )

    def _fill(self) -> None:
        self._rig.fill_pages(
            (seq * (1 << 20) + index, copies)
            for seq, pages in self._group.histories.items()
            for index, copies in enumerate(pages)
        )


def recorded_rows(batches: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """Home rows to record for: an even share of each batch, and what the fullest rank may have beyond it."""
    even = {-(-batch // num_ranks) for batch in batches}
    more = {rows for rows in decode_buckets(max(batches), num_ranks) if rows > min(even)}
    return tuple(sorted(even | more))
