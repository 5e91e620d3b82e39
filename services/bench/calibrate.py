"""`splash calibrate`: single operations, then whole steps over a grid of batches, then the fit of θ.

A step's time is that from the end of the step before to its own end, as in service. Every batch runs in every
layout, one after the other, so that what a policy has to compare is measured side by side.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.bench.calibrate_grid import Grid, TestBatch, held_out
from services.bench.calibrate_micro import Micro
from services.bench.calibrate_settings import CalibrateSettings
from services.bench.recorder import Recorder
from services.bench.rig import Rig
from services.bench.run_delay import busy_share
from services.bench.settings import layouts_of, sizes
from services.bench.sizing import Demand
from services.bench.spmd import RankHost
from splash_core.cost.samples import rows_text
from splash_core.errors import Infeasible
from splash_core.ids import SeqId
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Phase
from splash_core.scheduling.step import StepPlan

_DISTURBED = 0.05
"""Of a repetition: where a rank stood ready without a CPU for more of it, another one takes its place."""
_MOST_TURNS = 3
"""Of the repetitions of a step, until enough are undisturbed; else the least disturbed count."""
_SPOILT = 0.15
"""If a repetition that counts was disturbed for more than this, its batch is measured again at the end."""
_CALM_S, _PAUSE_S = 20.0, 0.25
"""Longest wait for a calm moment before a batch, and how often to look."""


def run(host: RankHost, settings: CalibrateSettings) -> dict[str, Any]:
    """The program of every rank; returns the document's JSON."""
    layouts = layouts_of(settings.layouts)
    grid = Grid(
        batches=sizes(settings.batch, "--batch"),
        prompts=sizes(settings.prompts, "--prompts"),
        contexts=sizes(settings.context, "--context"),
        rows=sizes(settings.rows, "--rows"),
        num_ranks=settings.ranks,
        most_tokens=settings.most_tokens,
        most_pairs=settings.most_pairs,
    )
    recorder = Recorder("calibrate", host, settings)
    recorder.say("making weights")
    demand = Demand(
        layouts=layouts, batch=1, tokens=settings.most_tokens + 64 * max(grid.batches), rows=max(grid.rows)
    )
    rig = Rig(host, settings, layout=Layout.DP, demand=demand)
    recorder.say("single operations")
    micro = Micro(rig, reps=2 * settings.reps, most_rows=max(grid.rows), most_tokens=settings.most_tokens)
    for row in micro.rows():
        recorder.add(row)
    steps = _Steps(rig, recorder, settings)
    waiting = deque(numbered(grid.in_order(settings.seed)))
    retries = len(waiting)
    while waiting:
        batch, held = waiting.popleft()
        if not recorder.begin(str(batch)):
            break
        rows = steps.measure(batch, layouts, held=held)
        if is_spoilt(rows) and retries:
            retries -= 1
            waiting.append((batch, held))
            continue
        for row in rows:
            recorder.add(row)
    document = recorder.document().to_json()
    document["settings"]["checkpoint"] = settings.model
    return document | {"file": "" if recorder.path is None else str(recorder.path)}


def numbered(batches: Sequence[TestBatch]) -> Iterator[tuple[TestBatch, bool]]:
    """Each batch, and whether it is held out."""
    numbers = dict.fromkeys(Phase, 0)
    for batch in batches:
        yield batch, held_out(numbers[batch.phase])
        numbers[batch.phase] += 1


def is_spoilt(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether other processes disturbed what would count."""
    return any(row.get("delayed", 0.0) > _SPOILT for row in rows)


class _Steps:
    """Whole steps on one rank."""

    def __init__(self, rig: Rig, recorder: Recorder, settings: CalibrateSettings) -> None:
        self._rig = rig
        self._recorder = recorder
        self._settings = settings
        self._turn = -1
        self._buckets = [
            1 << exponent for exponent in range(max(sizes(settings.batch, "--batch")).bit_length())
        ]

    def measure(self, batch: TestBatch, layouts: Sequence[Layout], *, held: bool) -> list[dict[str, Any]]:
        """One batch in every layout, layouts taking turns in going first."""
        self._turn += 1
        first = self._turn % len(layouts)
        self._await_calm()
        rows: list[dict[str, Any]] = []
        for layout in (*layouts[first:], *layouts[:first]):
            rows.append(self._row(batch, layout) | {"held_out": held})
            if is_spoilt(rows):
                break
        return rows

    def _await_calm(self) -> None:
        """On a CPU host, until nobody else wants its CPUs, for a while at most; all ranks together."""
        host = self._rig.host
        if host.comms.device.type != "cpu":
            return
        end = time.monotonic() + _CALM_S
        while host.agree(float(time.monotonic() < end)):
            if max(row[0] for row in host.gather([busy_share()])) <= _DISTURBED:
                return
            time.sleep(_PAUSE_S)

    def _row(self, batch: TestBatch, layout: Layout) -> dict[str, Any]:
        rig = self._rig
        rig.group.clear()
        rig.go(layout)
        fields = {
            "phase": batch.phase.value,
            "batch": str(batch),
            "layout": layout.value,
            "requests": rows_text(batch.load),
        }
        try:
            rig.group.put([(item.history, item.owner) for item in batch.requests])
            return fields | self._timed(batch, layout)
        except Infeasible as refusal:
            return fields | {"reason": str(refusal)}

    def _timed(self, batch: TestBatch, layout: Layout) -> dict[str, Any]:
        """Times of all repetitions, those that warm up in front."""
        rig = self._rig
        recorded: Mapping[str, Any] = {}
        if batch.phase is Phase.DECODE:
            recorded = rig.record_decode(layout, self._buckets)
        warmup, kept = list[float](), list[tuple[float, float]]()
        for _ in range(_MOST_TURNS):
            plans = self._plans(batch)
            run = rig.intervals(plans)
            skipped = self._settings.warmup + 1
            pairs = list(zip(run.ms, run.delayed_ms, strict=True))[:-1]
            warmup = warmup or list(run.ms[:skipped])
            kept += [(delayed / ms, ms) for ms, delayed in pairs[skipped:]]
            if sum(delay <= _DISTURBED for delay, _ in kept) >= self._settings.reps:
                break
        calm = sorted(kept, key=lambda pair: max(pair[0] - _DISTURBED, 0.0))[: self._settings.reps]
        return {
            "warmup": len(warmup),
            "ms": [float(f"{ms:.5g}") for ms in (*warmup, *(ms for _, ms in calm))],
            "left_out": len(kept) - len(calm),
            "delayed": round(max(delay for delay, _ in calm), 4),
            "form": plans[0].form.value,
            "storage": plans[0].cp_storage.value,
            **recorded,
        }

    def _plans(self, batch: TestBatch) -> list[StepPlan]:
        # One step more at either end: the first interval begins at a common start, the last one at the end of
        # a step behind which nothing waits.
        count = self._settings.warmup + 1 + self._settings.reps + 1
        self._rig.group.rewind()
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
