"""Switching decode steps: ordinary steps, then what the scheduler makes of a switch, then ordinary steps.

The leader's own scheduler plans, so that each mode is measured as it is served, copying ahead included.
Invariant: every window begins with fresh histories in the direction's source.
"""

import time
from collections.abc import Sequence
from typing import Any

from services.bench.decode_group import DecodeGroup
from services.bench.rig import Rig
from services.bench.settings import SwitchSettings, sizes
from services.bench.sizing import Demand
from services.bench.switch_rows import Cell, Direction, Window, window_fields
from splash_core.errors import Infeasible
from splash_core.layout.layout import Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.roles import Role
from splash_core.switch.chunks import chunk_bytes
from splash_core.switch.manifest import SwitchMode

AHEAD_ROOM = 512
"""Output tokens for which room is kept: a switch that copies ahead takes so many ordinary steps at most."""


class DecodeSwitches:
    """See the module.

    Args:
        rig: the rank.
        settings: of the benchmark.
        demand: its largest cell.
    """

    def __init__(self, rig: Rig, settings: SwitchSettings, demand: Demand) -> None:
        self._rig = rig
        self._ordinary = settings.ordinary
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
            rig.record_decode(layout, _fullest(sizes(settings.batch, "--batch"), settings.ranks))
        self._cell: tuple[int, int] = (0, 0)
        self._windows: dict[SwitchMode, list[Window]] = {}

    def place(self, cell: Cell, directions: Sequence[Direction]) -> None:
        """Histories in the first layout that holds them, filled once: later windows find finite rows.

        Raises:
            Infeasible: none does.
        """
        self._cell = cell.batch, cell.context
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
        """One window in each mode.

        Raises:
            Infeasible: the source does not hold the histories, or the scheduler refuses the switch.
        """
        for mode in modes:
            window = self._window(direction, mode)
            if counts:
                self._windows.setdefault(mode, []).append(window)

    def rows(self) -> dict[SwitchMode, dict[str, Any]]:
        """Fields of a row for each mode; the windows are then forgotten."""
        windows, self._windows = self._windows, {}
        return {mode: window_fields(of_mode) for mode, of_mode in windows.items()}

    def _begin(self, layout: Layout) -> None:
        """Fresh histories in `layout`."""
        group, rig = self._group, self._rig
        group.clear()
        if group.layout is not layout:
            rig.run(group.switch(layout, SwitchMode.BLOCKING).switching)
        batch, context = self._cell
        for plan in group.place(batch, context, output=self._output):
            rig.run(plan)

    def _window(self, direction: Direction, mode: SwitchMode) -> Window:
        source, destination = direction
        self._begin(source)
        # One step more in front: its interval begins at a common start, not at the end of a step.
        before = self._group.steps(self._ordinary + 1)
        began = time.perf_counter()
        try:
            switch = self._group.switch(destination, mode)
        except Infeasible:
            # Steps that are planned and not executed end with their requests.
            self._group.clear()
            raise
        plan_ms = (time.perf_counter() - began) * 1e3
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
            received_bytes=run.moved_bytes,
            ahead_bytes=run.ahead_bytes,
            plan_ms=plan_ms,
        )

    def _fill(self) -> None:
        self._rig.fill_pages(
            (seq * (1 << 20) + index, copies)
            for seq, pages in self._group.histories.items()
            for index, copies in enumerate(pages)
        )


def _fullest(batches: Sequence[int], num_ranks: int) -> list[int]:
    """Home rows on the fullest rank: an even share, or up to twice that where pages begin at odds."""
    even = [-(-batch // num_ranks) for batch in batches]
    return [*even, *(min(2 * share, batch) for share, batch in zip(even, batches, strict=True))]
