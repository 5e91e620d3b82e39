"""`splash bench switch`: what a switch adds to the step that carries it, in every direction and mode.

Each repetition measures, from the same state, a switching step in each mode and the same rows in the
destination with the state in place (`ready`). Between two of them the group goes back, unmeasured. The modes
take turns in going first, so that drift of the machine cancels; and so do directions: none has more than one
repetition more than another, so that short of time all have some.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from services.bench.recorder import RowRecorder
from services.bench.rig import Rig
from services.bench.settings import AHEAD_ROOM, SwitchSettings, directions_of, layouts_of, modes_of, sizes
from services.bench.sizing import LargestCell
from services.bench.spmd import RankHost
from services.bench.switch_decode import DecodeSwitches
from services.bench.switch_prefill import PrefillSwitches
from services.bench.switch_rows import Direction, SwitchCell
from splash_core.errors import ConfigError, Infeasible
from splash_core.switch.manifest import SwitchMode

_PREFILL_MODES = (SwitchMode.BLOCKING, SwitchMode.OVERLAPPED)
_DUE_REPS = 2
"""Repetitions of every direction before it counts as reached."""


class _Switches(Protocol):
    """How the steps of a phase are measured."""

    def place(self, cell: SwitchCell, directions: Sequence[Direction]) -> None:
        """Prepare a cell.

        Raises:
            Infeasible: it does not fit in any of the layouts to switch from.
        """
        ...

    def repeat(self, direction: Direction, modes: Sequence[SwitchMode], *, counts: bool) -> None:
        """One repetition in all modes; kept if it `counts`.

        Raises:
            Infeasible: the switch, or its source, does not fit.
        """
        ...

    def rows(self, direction: Direction) -> Mapping[str, dict[str, Any]]:
        """Fields of a row for each mode, from the repetitions of the cell that were kept."""
        ...


def run(host: RankHost, settings: SwitchSettings) -> dict[str, Any]:
    """The program of every rank; returns the document's JSON."""
    directions = directions_of(settings.directions, layouts_of(settings.layouts))
    modes, cells = modes_of(settings.modes), _cells(settings)
    decode = settings.phase == "decode"
    if not decode and (ahead := [mode for mode in modes if mode not in _PREFILL_MODES]):
        raise ConfigError(f"mode {ahead[0]} copies beside decode steps; measure it with --phase decode")
    grown = 2 * settings.ordinary + AHEAD_ROOM if decode else 0
    demand = LargestCell(
        layouts=sorted({layout for direction in directions for layout in direction}),
        batch=max(cell.batch for cell in cells),
        tokens=max(cell.context + max(-(-cell.chunk // cell.batch), grown) for cell in cells),
        rows=max(cell.chunk for cell in cells),
    )
    recorder = RowRecorder("switch", host, settings)
    recorder.say("making weights")
    rig = Rig(host, settings, layout=directions[0][0], demand=demand)
    switches: _Switches = DecodeSwitches(rig, settings, demand) if decode else PrefillSwitches(rig)
    for cell in cells:
        _Measurement(rig, recorder, settings, switches, modes).measure(cell, directions)
    return recorder.document().to_json()


def _cells(settings: SwitchSettings) -> list[SwitchCell]:
    batches, contexts = sizes(settings.batch, "--batch"), sizes(settings.context, "--context")
    shapes = [(batch, context) for batch in batches for context in contexts]
    if settings.phase == "decode":
        return [SwitchCell(batch=batch, context=context, chunk=batch) for batch, context in shapes]
    chunks = sizes(settings.chunk, "--chunk")
    return [SwitchCell(batch=b, context=c, chunk=chunk) for b, c in shapes for chunk in chunks]


class _Measurement:
    """Repetitions and rows of the cells."""

    def __init__(
        self,
        rig: Rig,
        recorder: RowRecorder,
        settings: SwitchSettings,
        switches: _Switches,
        modes: tuple[SwitchMode, ...],
    ) -> None:
        self._rig = rig
        self._recorder = recorder
        self._settings = settings
        self._switches = switches
        self._modes = modes

    def measure(self, cell: SwitchCell, directions: Sequence[Direction]) -> None:
        """All directions of one cell; those that do not fit get rows with the reason."""
        try:
            self._switches.place(cell, directions)
        except Infeasible as refusal:
            for direction in directions:
                self._put(cell, direction, self._refused(refusal))
            return
        left, seconds = list(directions), dict[Direction, float]()
        for rep in range(-self._settings.warmup, self._settings.reps):
            for direction in tuple(left):
                if not self._begin(cell, direction, rep, seconds.get(direction, 0.0)):
                    left.remove(direction)
                    continue
                began = time.monotonic()
                if not self._repeat(cell, direction, rep):
                    left.remove(direction)
                seconds[direction] = time.monotonic() - began

    def _begin(self, cell: SwitchCell, direction: Direction, rep: int, seconds: float) -> bool:
        """True if there is time for a repetition; where the first ones are missing, that is noted."""
        name = f"{self._settings.phase} {direction[0]} → {direction[1]}, {cell}"
        if rep >= min(_DUE_REPS, self._settings.reps):
            return self._recorder.goes_on(f"{name}, repetition {rep + 1}", seconds=seconds)
        if rep > 0:
            name += f", repetition {rep + 1}"
        return self._recorder.begin(name, seconds=seconds)

    def _repeat(self, cell: SwitchCell, direction: Direction, rep: int) -> bool:
        """One repetition, after which rows tell of all so far; False if the direction does not fit."""
        first = rep % len(self._modes)
        modes = [*self._modes[first:], *self._modes[:first]]
        try:
            self._switches.repeat(direction, modes, counts=rep >= 0)
        except Infeasible as refusal:
            self._put(cell, direction, self._refused(refusal))
            return False
        if rep >= 0:
            self._put(cell, direction, self._switches.rows(direction))
        return True

    def _refused(self, refusal: Infeasible) -> Mapping[str, dict[str, Any]]:
        return {mode: {"reason": str(refusal)} for mode in self._modes}

    def _put(self, cell: SwitchCell, direction: Direction, rows: Mapping[str, Mapping[str, Any]]) -> None:
        peak = self._rig.peak_bytes()
        for mode, fields in rows.items():
            row = {
                "phase": self._settings.phase,
                "from": direction[0],
                "to": direction[1],
                "mode": mode,
                "batch": cell.batch,
                "context": cell.context,
                "chunk": cell.chunk,
                **fields,
            }
            self._recorder.put((cell, direction, mode), row | ({"peak_bytes": peak} if peak else {}))
