"""Switching prefill steps: all requests run rows over the same history, and are taken back to it.

Invariant: between two measured steps the group is in the direction's source with nothing but the histories.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from services.bench.rig import Rig, TimedStep
from services.bench.switch_rows import Cell, Direction, Pair, layer_ms, pair_fields
from splash_core.errors import Infeasible
from splash_core.ids import SeqId
from splash_core.layout.layout import Layout
from splash_core.switch.manifest import SwitchMode


class PrefillSwitches:
    """See the module.

    Args:
        rig: the rank.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._rows: Mapping[SeqId, int] = {}
        self._pairs: dict[tuple[Direction, SwitchMode], list[Pair]] = {}

    def place(self, cell: Cell, directions: Sequence[Direction]) -> None:
        """Histories in the first layout that holds them.

        Raises:
            Infeasible: none does.
        """
        rig, reasons, self._pairs = self._rig, [], {}
        rig.group.clear()
        for layout in dict.fromkeys(source for source, _ in directions):
            rig.go(layout)
            try:
                rig.place(cell.batch, cell.context)
            except Infeasible as refusal:
                reasons.append(str(refusal))
                continue
            self._rows = rig.even_rows(cell.chunk)
            return
        raise Infeasible("; ".join(reasons))

    def repeat(self, direction: Direction, modes: Sequence[SwitchMode], *, counts: bool) -> None:
        """One ready step and one switching step in each mode, before each an ordinary step in the source.

        A device computes faster for a while after it has rested: before the switching steps it rests for as
        long as the moves before the ready step took.

        Raises:
            Infeasible: the source or the destination does not hold the histories and the rows.
        """
        rig, group = self._rig, self._rig.group
        source, destination = direction
        self._ordinary_step(source)
        rest_s = self._seconds_to_go(destination)
        ready = rig.timed(group.step(self._rows))
        group.rewind()
        switching: dict[SwitchMode, tuple[TimedStep, float]] = {}
        for mode in modes:
            self._ordinary_step(source)
            time.sleep(rest_s)
            switching[mode] = self._switch(destination, mode)
            group.rewind()
        if counts:
            for mode, (step, plan_ms) in switching.items():
                pair = Pair(switching=step, ready=ready, plan_ms=plan_ms)
                self._pairs.setdefault((direction, mode), []).append(pair)

    def rows(self, direction: Direction) -> Mapping[str, dict[str, Any]]:
        """Fields of a row for each mode."""
        pairs = {mode: kept for (of, mode), kept in self._pairs.items() if of == direction}
        one_layer_ms = layer_ms(pairs.get(SwitchMode.BLOCKING, []), self._rig.spec.layers)
        return {str(mode): pair_fields(of_mode, one_layer_ms) for mode, of_mode in pairs.items()}

    def _ordinary_step(self, layout: Layout) -> None:
        self._rig.go(layout)
        self._rig.timed(self._rig.group.step(self._rows))
        self._rig.group.rewind()

    def _seconds_to_go(self, layout: Layout) -> float:
        began = time.perf_counter()
        self._rig.go(layout)
        self._rig.clock.catch_up()
        return time.perf_counter() - began

    def _switch(self, layout: Layout, mode: SwitchMode) -> tuple[TimedStep, float]:
        began = time.perf_counter()
        plan = self._rig.group.switch(layout, mode, self._rows)
        plan_ms = (time.perf_counter() - began) * 1e3
        return self._rig.timed(plan), plan_ms
