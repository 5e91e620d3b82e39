"""Decode steps one ahead of their results, replayed from CUDA graphs: enqueued without waiting, same tokens.

Run with `python -m pytest -m gpu tests/gpu/test_ahead.py`; T = all GPUs.
"""

from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splash_core.dist.comm import RankComms
from splash_core.dist.launch import rank_comms
from splash_core.engine.engine import RankEngine
from splash_core.engine.running import RunningStep
from splash_core.engine.static_backends import decode_graphs
from splash_core.ids import StepId
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import DrawnToken, SequenceStep, StepPlan, StepResult
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from tests.support.gpus import NUM_GPUS, gpu_launch, run_to_the_end
from tests.support.group import arena_with
from tests.support.plans import PlanBuilder

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

STEPS, WARM_UP, ROWS = 50, 4, 3
PROMPT = 20
HOLD_CYCLES = 4_000_000_000
"""About two seconds of a Hopper GPU."""
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=1 << 20),
    "everything": SamplingParams(
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        seed=7,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        repetition_penalty=1.1,
        logprobs=2,
        min_tokens=10,
        stop_token_ids=(2,),
        max_tokens=1 << 20,
    ),
}
Tokens = dict[int, list[int]]


def _engine(comms: RankComms, checkpoint: Path, layout: Layout) -> RankEngine:
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=comms.compute.size, page_size=64, elem_bytes=2, ordinary=40)
    engine = RankEngine.load(
        checkpoint,
        spec=spec,
        arena=arena,
        memory=torch.zeros(arena.arena_bytes, dtype=torch.uint8, device=comms.device),
        comms=comms,
        dtype=torch.bfloat16,
        layout=layout,
    )
    engine.graphs = decode_graphs(engine.ctx, buckets=(ROWS,), comm=comms.recorded)
    with torch.inference_mode():
        engine.graphs.record(layout)
    return engine


def _plans(engine: RankEngine, layout: Layout, params: SamplingParams) -> list[StepPlan]:
    """Prompts at once, then decode rows whose tokens are made up."""
    builder = PlanBuilder(engine.ctx.arena.map, layout)
    rows = ROWS * engine.ctx.num_ranks
    made_up = [[(7 * at + 3 * row) % 99 for at in range(PROMPT + STEPS)] for row in range(rows)]
    seqs = [builder.start(tokens, num_prompt=PROMPT, sampling=params) for tokens in made_up]
    plans = [builder.step(dict.fromkeys(seqs, PROMPT))]
    plans += [builder.step(dict.fromkeys(seqs, 1)) for _ in range(STEPS)]
    return [replace(p, sequences=tuple(replace(row, sample=True) for row in p.sequences)) for p in plans]


def _named(plan: StepPlan, tokens: Tokens, told: int) -> StepPlan:
    """As a leader sends it beside the step before; `told`: tokens of each sequence that it knows by now."""

    def rows_of(rows: SequenceStep) -> SequenceStep:
        before = tuple(tokens[rows.seq][told - 1 : told]) if told else ()
        return replace(rows, tokens=DrawnToken(StepId(plan.step - 1)), before=before)

    return replace(plan, sequences=tuple(map(rows_of, plan.sequences)))


def _known(plan: StepPlan, tokens: Tokens) -> StepPlan:
    return replace(plan, sequences=tuple(replace(r, tokens=(tokens[r.seq][-1],)) for r in plan.sequences))


def _note(comms: RankComms, result: StepResult, tokens: Tokens) -> None:
    """Enter what all ranks drew: the leader's part."""
    mine = torch.full((1, ROWS * comms.compute.size), -1, dtype=torch.int64)
    for drawn in result.tokens:
        mine[0, drawn.seq] = drawn.token
    counts = [1] * comms.compute.size
    drawn_TS = comms.compute.all_gather_rows(mine.to(comms.device), counts, tag="test.tokens")
    for seq, token in enumerate(drawn_TS.amax(dim=0).tolist()):
        tokens.setdefault(seq, []).append(token)


def _ahead(
    rank: int, num_ranks: int, folder: Path, checkpoint: Path, layout: Layout, params: SamplingParams
) -> tuple[Tokens, Tokens, int, bool]:
    """Tokens one step ahead, step by step, the steps replayed, and whether a held device held the host."""
    with rank_comms(gpu_launch(rank, num_ranks, folder)) as comms:
        engine = _engine(comms, checkpoint, layout)
        plans = _plans(engine, layout, params)
        ahead: Tokens = {}
        running: deque[RunningStep] = deque([engine.begin(plans[0])])
        waited = False
        for index, plan in enumerate(plans[1:]):
            named = _named(plan, ahead, index)
            steady = index >= WARM_UP
            if steady:
                torch.cuda.set_sync_debug_mode("error")
            running.append(engine.begin(named))
            torch.cuda.set_sync_debug_mode("default")
            _note(comms, running.popleft().finish(), ahead)
        _note(comms, running.popleft().finish(), ahead)
        assert engine.graphs is not None
        replays = engine.graphs.replays.total()
        stepwise: Tokens = {}
        again = RankEngine(engine.ctx, comms, layout, engine.graphs)
        fresh = _plans(again, layout, params)
        _note(comms, again.step(fresh[0]), stepwise)
        for index, plan in enumerate(fresh[1:]):
            if index == STEPS // 2:
                torch.cuda._sleep(HOLD_CYCLES)
                held = torch.cuda.Event()
                held.record()
                step = again.begin(_known(plan, stepwise))
                waited = held.query()
                _note(comms, step.finish(), stepwise)
            else:
                _note(comms, again.step(_known(plan, stepwise)), stepwise)
        return ahead, stepwise, replays, waited


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("layout", [Layout.TP, Layout.DP, Layout.CP, Layout.DOP])
def test_steady_decode_waits_for_nothing_and_draws_the_same(
    layout: Layout, name: str, wide_v2_lite: Path, tmp_path: Path
) -> None:
    assert NUM_GPUS > 0, "torch sees no GPU"
    answers = run_to_the_end(_ahead, NUM_GPUS, tmp_path, wide_v2_lite, layout, PARAMS[name])
    for ahead, stepwise, replays, waited in answers:
        assert replays == STEPS, "steps were launched one by one: the test proves nothing"
        assert not waited, "the host waited for the device while it enqueued a step"
        assert ahead == stepwise
        assert {len(tokens) for tokens in ahead.values()} == {STEPS + 1}
