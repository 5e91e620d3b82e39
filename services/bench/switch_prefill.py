"""Switching prefill steps: all requests run rows over the same history, and are taken back to it.

Invariant: between two measured steps the group is in the direction's source with nothing but the histories.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from services.bench.rig import Rig, TimedStep
from services.bench.switch_rows import Direction, StepPair, SwitchCell, layer_ms, pair_fields
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
        self._pairs: dict[tuple[Direction, SwitchMode], list[StepPair]] = {}

    def place(self, cell: SwitchCell, directions: Sequence[Direction]) -> None:
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
        """One switching step in each mode, and one ready step after the first of them.

        An ordinary step goes before each switching step, as one goes before the ready step: a device that has
        rested computes faster for a while. (Moves or a pause before the ready step would be a rest.)

        Raises:
            Infeasible: the source or the destination does not hold the histories and the rows.
        """
        rig, group = self._rig, self._rig.group
        source, destination = direction
        switching: dict[SwitchMode, tuple[TimedStep, float]] = {}
        ready: TimedStep | None = None
        for mode in modes:
            rig.go(source)
            rig.timed(group.step(self._rows))
            group.rewind()
            switching[mode] = self._switch(destination, mode)
            group.rewind()
            if ready is None:
                ready = rig.timed(group.step(self._rows))
                group.rewind()
        assert ready is not None  # there is at least one mode
        if counts:
            for mode, (step, plan_ms) in switching.items():
                pair = StepPair(switching=step, ready=ready, plan_ms=plan_ms)
                self._pairs.setdefault((direction, mode), []).append(pair)

    def rows(self, direction: Direction) -> Mapping[str, dict[str, Any]]:
        """Fields of a row for each mode."""
        pairs = {mode: kept for (of, mode), kept in self._pairs.items() if of == direction}
        one_layer_ms = layer_ms(pairs.get(SwitchMode.BLOCKING, []), self._rig.spec.layers)
        return {str(mode): pair_fields(of_mode, one_layer_ms) for mode, of_mode in pairs.items()}

    def _switch(self, layout: Layout, mode: SwitchMode) -> tuple[TimedStep, float]:
        began = time.perf_counter()
        plan = self._rig.group.switch(layout, mode, self._rows)
        plan_ms = (time.perf_counter() - began) * 1e3
        return self._rig.timed(plan), plan_ms
