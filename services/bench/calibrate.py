"""`splash calibrate`: single operations, steps beside transfers, whole steps over a grid, then the fit of θ.

A step's time is that from the end of the step before to its own end, as in service. Every batch runs in every
layout, one after the other, so that what a policy has to compare is measured side by side.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from services.bench.calibrate_beside import BesideTransfers
from services.bench.calibrate_grid import Grid, TestBatch, held_out
from services.bench.calibrate_micro import Micro
from services.bench.calibrate_settings import CalibrateSettings
from services.bench.calibrate_steps import Steps, is_spoilt
from services.bench.recorder import RowRecorder
from services.bench.rig import Rig
from services.bench.settings import layouts_of, sizes
from services.bench.sizing import LargestCell
from services.bench.spmd import RankHost
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Phase


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
    load = round(os.getloadavg()[0], 2)
    recorder = RowRecorder("calibrate", host, settings)
    recorder.say("making weights")
    demand = LargestCell(
        layouts=layouts, batch=1, tokens=settings.most_tokens + 64 * max(grid.batches), rows=max(grid.rows)
    )
    rig = Rig(host, settings, layout=Layout.DP, demand=demand)
    recorder.say("single operations")
    micro = Micro(rig, reps=2 * settings.reps, most_rows=max(grid.rows), most_tokens=settings.most_tokens)
    for row in micro.rows():
        recorder.add(row)
    recorder.say("steps beside transfers")
    for row in BesideTransfers(rig, settings).rows():
        recorder.add(row)
    steps = Steps(rig, settings)
    waiting = deque(numbered(grid.in_order(settings.seed)))
    retries = len(waiting)
    while waiting:
        batch, held = waiting.popleft()
        if not recorder.begin(str(batch)):
            break
        rows = steps.measure(batch, layouts)
        if is_spoilt(rows) and retries:
            retries -= 1
            waiting.append((batch, held))
            continue
        for row in rows:
            recorder.add(row | {"held_out": held})
    document = recorder.document().to_json()
    document["settings"] |= {"checkpoint": settings.model, "load_average": load}
    return document | {"file": "" if recorder.path is None else str(recorder.path)}


def numbered(batches: Sequence[TestBatch]) -> Iterator[tuple[TestBatch, bool]]:
    """Each batch, and whether it is held out."""
    numbers = dict.fromkeys(Phase, 0)
    for batch in batches:
        yield batch, held_out(numbers[batch.phase])
        numbers[batch.phase] += 1
