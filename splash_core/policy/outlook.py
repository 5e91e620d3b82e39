"""What each layout would make of a snapshot: predicted step, time to finish, and whether it all fits.

Objective (docs/model.md §6), smaller is better. Prefill: seconds to finish all of x, in as many admission
waves as the layout's pool needs. Decode: seconds per token of the subset x_l that the pool admits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from splash_core.cost.load import Load, Rows
from splash_core.cost.model import CostModel, Prediction
from splash_core.cost.step_kind import StepKind, decode_kind
from splash_core.layout.layout import RULES, Layout
from splash_core.policy.config import DEFAULT_HORIZON_STEPS
from splash_core.policy.room import PlacedTokens, Room
from splash_core.policy.snapshot import Phase, RunningSequence, Snapshot

_STEPS_TO_FIRST_TOKEN = 3
"""A prompt that comes waits for the step that runs and the one that has been sent, and then runs its own."""


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
    chunk_tokens: int
    """Rows of a step that computes prompts, chosen for this layout."""
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
    ttft_bound_s: float | None = None,
    horizon_steps: int = DEFAULT_HORIZON_STEPS,
) -> Mapping[Layout, Outlook]:
    """The outlook of every feasible layout of the group.

    Args:
        snapshot: load and room.
        model: the cost model of the deployment.
        itl_bound_s: steps with decode rows should not take longer; layouts in which they do come last, unless
            they do in all.
        ttft_bound_s: the same for the first token of a prompt that comes now and fits one chunk.
        horizon_steps: steps for which a layout is chosen; what grows in them must fit.
    """
    names = [layout for layout, pool in snapshot.pools.items() if pool.feasible]
    demand = _servable(snapshot, [Room.of(snapshot, layout) for layout in names])
    bound_s = _step_bound(snapshot, itl_bound_s=itl_bound_s, ttft_bound_s=ttft_bound_s)
    look = _prefill if snapshot.phase is Phase.PREFILL else _decode
    result = {layout: look(snapshot, model, layout, demand, horizon_steps, bound_s) for layout in names}
    if all(outlook.prediction.step_s > bound_s for outlook in result.values()):
        return result
    return {
        layout: replace(outlook, objective_s=math.inf) if outlook.prediction.step_s > bound_s else outlook
        for layout, outlook in result.items()
    }


def _step_bound(snapshot: Snapshot, *, itl_bound_s: float | None, ttft_bound_s: float | None) -> float:
    """How long a step may take; infinite without bounds that apply."""
    bounds = [math.inf]
    if snapshot.phase is Phase.PREFILL and ttft_bound_s is not None:
        bounds.append(ttft_bound_s / _STEPS_TO_FIRST_TOKEN)
    decodes = any(running.step_rows and not running.remaining_prompt for running in snapshot.running)
    if itl_bound_s is not None and (snapshot.phase is Phase.DECODE or decodes):
        bounds.append(itl_bound_s)
    return min(bounds)


def _servable(snapshot: Snapshot, rooms: Sequence[Room]) -> tuple[PlacedTokens, ...]:
    """Waiting requests that at least one layout could hold alone; the others bind no choice."""
    demands = (
        PlacedTokens(prompt=waiting.prompt_tokens, output=waiting.projected_output)
        for waiting in snapshot.waiting
    )
    return tuple(demand for demand in demands if any(room.could_hold(demand.tokens) for room in rooms))


def _decode(
    snapshot: Snapshot,
    model: CostModel,
    layout: Layout,
    waiting: tuple[PlacedTokens, ...],
    horizon: int,
    bound_s: float,
) -> Outlook:
    del bound_s  # a decode step has no chunk that could be smaller
    room = Room.of(snapshot, layout)
    refusal = room.place_running(horizon=horizon)
    starved = any(not room.could_hold(demand.tokens) for demand in waiting)
    admitted, _ = room.admit(waiting)
    rows = [Rows(1, placed.prompt, placed.owner) for placed in admitted]
    rows += [_decode_rows(running) for running in snapshot.running]
    load = Load.of(rows, num_ranks=snapshot.num_ranks, top_k=model.top_k)
    kind = StepKind.PROMPTS
    if snapshot.decodes:
        kind = decode_kind(RULES[layout], load, recorded_rows=snapshot.recorded_rows)
    prediction = model.predict(RULES[layout], load, kind=kind)
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
        chunk_tokens=snapshot.chunk_tokens,
        refusal=refusal,
    )


def _prefill(
    snapshot: Snapshot,
    model: CostModel,
    layout: Layout,
    waiting: tuple[PlacedTokens, ...],
    horizon: int,
    bound_s: float,
) -> Outlook:
    room = Room.of(snapshot, layout)
    refusal = room.place_running(horizon=horizon)
    starved = any(not room.could_hold(demand.tokens) for demand in waiting)
    admitted, rest = room.admit(waiting)
    chunk = _chunk(snapshot, model, layout, admitted, bound_s)
    first = _finish(snapshot, model, layout, snapshot.running, admitted, chunk)
    objective, steps, waves = first.total_s, first.steps, 1
    num_first = len(snapshot.running) + len(admitted)
    while rest and not starved:
        room.clear()
        admitted, rest = room.admit(rest)
        wave = _finish(snapshot, model, layout, (), admitted, chunk)
        objective, steps, waves = objective + wave.total_s, steps + wave.steps, waves + 1
    return Outlook(
        layout=layout,
        present=layout is snapshot.layout,
        prediction=first,
        objective_s=math.inf if starved else objective,
        remaining_steps=steps,
        admitted=num_first,
        waves=waves,
        chunk_tokens=chunk,
        refusal=refusal,
    )


def _chunk(
    snapshot: Snapshot, model: CostModel, layout: Layout, admitted: Sequence[PlacedTokens], bound_s: float
) -> int:
    """The largest chunk, by halving what memory is sized for, whose steps keep the bound.

    A smaller chunk only costs time, so a bound that not even a page of rows keeps binds nothing.
    """
    chunk = snapshot.chunk_tokens
    while _finish(snapshot, model, layout, snapshot.running, admitted, chunk).step_s > bound_s:
        if chunk <= min(snapshot.page_size, snapshot.chunk_tokens):
            return snapshot.chunk_tokens
        chunk = max(chunk // 2, snapshot.page_size)
    return chunk


def _finish(
    snapshot: Snapshot,
    model: CostModel,
    layout: Layout,
    running: Sequence[RunningSequence],
    admitted: Sequence[PlacedTokens],
    chunk: int,
) -> Prediction:
    """The steps that finish all prompts that run and those admitted."""
    items = [_prompt_rows(item, chunk) for item in running]
    items += [Rows(placed.prompt, 0, placed.owner, _visits(placed.prompt, chunk)) for placed in admitted]
    steps = _visits(sum(item.rows for item in items), chunk)
    load = Load.of(items, num_ranks=snapshot.num_ranks, steps=steps, top_k=model.top_k)
    return model.predict(RULES[layout], load, kind=StepKind.PROMPTS)


def _decode_rows(running: RunningSequence) -> Rows:
    return Rows(max(running.step_rows, 1), running.context_tokens, running.owner)


def _prompt_rows(running: RunningSequence, chunk: int) -> Rows:
    rows = running.remaining_prompt
    return Rows(rows, running.context_tokens, running.owner, _visits(rows, chunk), samples=min(rows, 1))


def _visits(rows: int, chunk_tokens: int) -> int:
    return max(-(-rows // max(chunk_tokens, 1)), 1)
