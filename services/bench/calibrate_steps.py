"""One batch's step in every layout: rounds over the layouts, until each has enough undisturbed repetitions.

Layouts take turns, so what disturbs a host for seconds does not fall on one of them. Which repetitions count
is decided by how long a rank waited for a CPU, never by how long they took.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.bench.calibrate_grid import TestBatch
from services.bench.calibrate_settings import CalibrateSettings
from services.bench.rig import Rig
from services.bench.run_delay import busy_share
from services.bench.settings import sizes
from splash_core.cost.samples import rows_text
from splash_core.errors import Infeasible
from splash_core.ids import SeqId
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Phase
from splash_core.scheduling.step import StepPlan

DISTURBED = 0.05
"""Of a repetition: where a rank stood ready without a CPU for more of it, another one takes its place."""
SPOILT = 0.15
"""If a repetition that counts was disturbed for more than this, its batch is measured again at the end."""
_MOST_ROUNDS = 3
"""If a layout then lacks undisturbed repetitions, the least disturbed count."""
_CALM_S, _PAUSE_S = 3.0, 0.25
"""Longest wait for a calm moment before a round, and how often to look."""


@dataclass(slots=True)
class _MeasuredCell:
    """What is known of a batch in one layout."""

    warmup: list[float] = field(default_factory=list[float])
    kept: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Of each repetition, the part of it that it was disturbed for, and its time."""
    named: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the plan says, and what recording took."""

    def calm(self, reps: int) -> list[tuple[float, float]]:
        """The repetitions that count: undisturbed ones first, in their order."""
        return sorted(self.kept, key=lambda pair: max(pair[0] - DISTURBED, 0.0))[:reps]

    def row(self, reps: int) -> dict[str, Any]:
        """The figures, those that warm up in front."""
        calm = self.calm(reps)
        return {
            "warmup": len(self.warmup),
            "ms": [float(f"{ms:.5g}") for ms in (*self.warmup, *(ms for _, ms in calm))],
            "left_out": len(self.kept) - len(calm),
            "delayed": round(max(delay for delay, _ in calm), 4),
            **self.named,
        }


class Steps:
    """The measurements of one rank; all ranks ask for the same batches in the same order.

    Args:
        rig: of the rank.
        settings: resolved.
    """

    def __init__(self, rig: Rig, settings: CalibrateSettings) -> None:
        self._rig = rig
        self._settings = settings
        self._turn = -1

    def measure(self, batch: TestBatch, layouts: Sequence[Layout]) -> list[dict[str, Any]]:
        """A row for each layout, with the reason where the batch does not fit it."""
        self._turn += 1
        first, reps = self._turn % len(layouts), self._settings.reps
        waiting = [*layouts[first:], *layouts[:first]]
        cells = {layout: _MeasuredCell() for layout in layouts}
        refused: dict[Layout, str] = {}
        for _ in range(_MOST_ROUNDS):
            self._await_calm()
            for layout in tuple(waiting):
                try:
                    self._repeat(batch, layout, cells[layout])
                except Infeasible as refusal:
                    refused[layout] = str(refusal)
                calm = [delay for delay, _ in cells[layout].kept if delay <= DISTURBED]
                if layout in refused or len(calm) >= reps:
                    waiting.remove(layout)
        return [
            self._fields(batch, layout)
            | ({"reason": refused[layout]} if layout in refused else cells[layout].row(reps))
            for layout in layouts
        ]

    def _fields(self, batch: TestBatch, layout: Layout) -> dict[str, Any]:
        return {
            "phase": batch.phase.value,
            "batch": str(batch),
            "layout": layout.value,
            "requests": rows_text(batch.load),
        }

    def _await_calm(self) -> None:
        """On a CPU host, until nobody else wants its CPUs, for a while at most; all ranks together."""
        host = self._rig.host
        if host.comms.device.type != "cpu":
            return
        end = time.monotonic() + _CALM_S
        while host.agree(float(time.monotonic() < end)):
            if max(row[0] for row in host.gather([busy_share()])) <= DISTURBED:
                return
            time.sleep(_PAUSE_S)

    def _repeat(self, batch: TestBatch, layout: Layout, cell: _MeasuredCell) -> None:
        rig, group = self._rig, self._rig.group
        group.clear()
        rig.go(layout)
        group.put([(item.history, item.owner) for item in batch.requests])
        recorded: Mapping[str, Any] = {}
        if batch.phase is Phase.DECODE:
            recorded = rig.record_decode(layout, recorded_rows(self._settings))
        plans = self._plans(batch)
        run = rig.intervals(plans)
        skipped = self._settings.warmup + 1
        pairs = list(zip(run.ms, run.delayed_ms, strict=True))[:-1]
        cell.warmup = cell.warmup or list(run.ms[:skipped])
        # A GPU's host runs ahead: what it waits for is hidden, or is in the time.
        counts = float(rig.host.comms.device.type == "cpu")
        cell.kept += [(counts * delayed / ms, ms) for ms, delayed in pairs[skipped:]]
        cell.named = {"form": plans[0].form.value, "storage": plans[0].cp_storage.value, **recorded}

    def _plans(self, batch: TestBatch) -> list[StepPlan]:
        # One step more at either end: the first interval begins at a common start, the last one at the end of
        # a step behind which nothing waits.
        count = self._settings.warmup + 1 + self._settings.reps + 1
        if batch.phase is Phase.DECODE:
            return self._rig.group.decode_ahead(count)
        return [self._again(batch) for _ in range(count)]

    def _again(self, batch: TestBatch) -> StepPlan:
        group = self._rig.group
        group.rewind()
        rows: dict[SeqId, int] = {}
        drawing: list[SeqId] = []
        for seq, item in zip(group.seqs, batch.requests, strict=True):
            rows[seq] = item.rows
            if item.draws:
                drawing.append(seq)
        return group.step(rows, sampled=drawing)


def recorded_rows(settings: CalibrateSettings) -> list[int]:
    """Numbers of home rows for which decode steps are recorded."""
    largest = max(sizes(settings.batch, "--batch"))
    return [1 << exponent for exponent in range((largest - 1).bit_length() + 1)]


def is_spoilt(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether other processes disturbed what would count."""
    return any(row.get("delayed", 0.0) > SPOILT for row in rows)
