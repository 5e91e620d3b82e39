"""What each layout would make of a snapshot: predicted step, time to finish, and whether it all fits.

Objective (docs/model.md §6), smaller is better. Prefill: seconds to finish all of x, in as many admission
waves as the layout's pool needs. Decode: seconds per token of the subset x_l that the pool admits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from splash_core.cost.load import Load, Rows
from splash_core.cost.model import CostModel, Prediction
from splash_core.layout.layout import RULES, Layout
from splash_core.policy.config import DEFAULT_HORIZON_STEPS
from splash_core.policy.room import Demand, Room
from splash_core.policy.snapshot import Phase, RunningSequence, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """One feasible layout's prediction for one snapshot."""

    layout: Layout
    present: bool
    """True for the layout that the group runs in."""
    prediction: Prediction
    """Of the next step in decode; of the first wave's steps in prefill."""
    objective_s: float
    """Smaller is better; infinite when some request would never be admitted."""
    remaining_steps: int
    admitted: int
    """Requests that run at once: |x_l|."""
    waves: int
    refusal: str = ""
    """Why the running histories do not fit this layout, when they do not."""

    @property
    def step_ms(self) -> float:
        """Predicted time of a step, in milliseconds."""
        return self.prediction.step_s * 1e3


def outlooks(
    snapshot: Snapshot,
    model: CostModel,
    *,
    itl_bound_s: float | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
) -> Mapping[Layout, Outlook]:
    """The outlook of every feasible layout of the group.

    Args:
        snapshot: load and room.
        model: the cost model of the deployment.
        itl_bound_s: decode steps should not take longer; layouts that do come last, unless all do.
        horizon_steps: steps for which a layout is chosen; what grows in them must fit.
    """
    names = [layout for layout, pool in snapshot.pools.items() if pool.feasible]
    demand = _servable(snapshot, [Room.of(snapshot, layout) for layout in names])
    prefill = snapshot.phase is Phase.PREFILL
    rows = [_prompt_rows(item, snapshot) if prefill else _decode_rows(item) for item in snapshot.running]
    base = Load.of(rows, num_ranks=snapshot.num_ranks, top_k=model.top_k)
    look = _prefill if prefill else _decode
    result = {layout: look(snapshot, model, layout, base, demand, horizon_steps) for layout in names}
    if itl_bound_s is None or snapshot.phase is Phase.PREFILL:
        return result
    if all(outlook.prediction.step_s > itl_bound_s for outlook in result.values()):
        return result
    return {
        layout: replace(outlook, objective_s=math.inf) if outlook.prediction.step_s > itl_bound_s else outlook
        for layout, outlook in result.items()
    }


def step_load(snapshot: Snapshot, *, top_k: int | None) -> Load:
    """The rows of the next step alone, to choose its attention form."""
    items = [
        Rows(running.step_rows, running.context_tokens, running.owner)
        for running in snapshot.running
        if running.step_rows
    ]
    return Load.of(items, num_ranks=snapshot.num_ranks, top_k=top_k)


def _servable(snapshot: Snapshot, rooms: Sequence[Room]) -> tuple[Demand, ...]:
    """Waiting requests that at least one layout could hold alone; the others bind no choice."""
    demands = (
        Demand(prompt=waiting.prompt_tokens, output=waiting.projected_output) for waiting in snapshot.waiting
    )
    return tuple(demand for demand in demands if any(room.could_hold(demand.tokens) for room in rooms))


def _decode(
    snapshot: Snapshot,
    model: CostModel,
    layout: Layout,
    base: Load,
    waiting: tuple[Demand, ...],
    horizon: int,
) -> Outlook:
    room = Room.of(snapshot, layout)
    refusal = room.place_running(horizon=horizon)
    starved = any(not room.could_hold(demand.tokens) for demand in waiting)
    admitted, _ = room.admit(waiting)
    rows = [Rows(1, placed.prompt, placed.owner) for placed in admitted]
    load = base.with_rows(rows, steps=1, top_k=model.top_k)
    decode = all(running.step_rows <= 1 for running in snapshot.running)
    prediction = model.predict(RULES[layout], load, decode=decode)
    remaining = [running.projected_output for running in snapshot.running]
    remaining += [placed.output for placed in admitted]
    num_requests = len(snapshot.running) + len(admitted)
    return Outlook(
        layout=layout,
        present=layout is snapshot.layout,
        prediction=prediction,
        objective_s=math.inf if starved else prediction.step_s / max(num_requests, 1),
        remaining_steps=max([1, *remaining]),
        admitted=num_requests,
        waves=1,
        refusal=refusal,
    )


def _prefill(
    snapshot: Snapshot,
    model: CostModel,
    layout: Layout,
    base: Load,
    waiting: tuple[Demand, ...],
    horizon: int,
) -> Outlook:
    room = Room.of(snapshot, layout)
    refusal = room.place_running(horizon=horizon)
    starved = any(not room.could_hold(demand.tokens) for demand in waiting)
    admitted, rest = room.admit(waiting)
    first = _finish(snapshot, model, layout, base, admitted)
    objective, steps, waves = first.total_s, first.steps, 1
    num_first = len(snapshot.running) + len(admitted)
    empty = Load.of((), num_ranks=snapshot.num_ranks)
    while rest and not starved:
        room.clear()
        admitted, rest = room.admit(rest)
        wave = _finish(snapshot, model, layout, empty, admitted)
        objective, steps, waves = objective + wave.total_s, steps + wave.steps, waves + 1
    return Outlook(
        layout=layout,
        present=layout is snapshot.layout,
        prediction=first,
        objective_s=math.inf if starved else objective,
        remaining_steps=steps,
        admitted=num_first,
        waves=waves,
        refusal=refusal,
    )


def _finish(
    snapshot: Snapshot, model: CostModel, layout: Layout, base: Load, admitted: Sequence[Demand]
) -> Prediction:
    """The steps that finish all rows of `base` and of the prompts admitted."""
    chunk = snapshot.chunk_tokens
    items = [Rows(placed.prompt, 0, placed.owner, _visits(placed.prompt, chunk)) for placed in admitted]
    steps = _visits(round(base.total.rows) + sum(item.rows for item in items), chunk)
    load = base.with_rows(items, steps=steps, top_k=model.top_k)
    return model.predict(RULES[layout], load, decode=False)


def _decode_rows(running: RunningSequence) -> Rows:
    return Rows(max(running.step_rows, 1), running.context_tokens, running.owner)


def _prompt_rows(running: RunningSequence, snapshot: Snapshot) -> Rows:
    rows = running.remaining_prompt
    visits = _visits(rows, snapshot.chunk_tokens)
    return Rows(rows, running.context_tokens, running.owner, visits, samples=min(rows, 1))


def _visits(rows: int, chunk_tokens: int) -> int:
    return max(-(-rows // max(chunk_tokens, 1)), 1)
