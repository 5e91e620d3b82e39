"""An engine whose steps report every row's logits, and drivers that run plans on ranks of any kind."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from services.bench.counting import CountingComm, Traffic
from splash_core.attention.batch import PADDING, Batch, build_batch
from splash_core.attention.context import RankContext
from splash_core.attention.padding import pad_batch
from splash_core.attention.registry import create_attention
from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.dist.order import CPU
from splash_core.dist.peer_memory import Sharing
from splash_core.engine.decoder import hidden_rows, home_logits
from splash_core.engine.engine import RankEngine
from splash_core.engine.output import StepOutput
from splash_core.engine.stream_lane import Gpu
from splash_core.engine.switching import SwitchExecution
from splash_core.ids import SeqId
from splash_core.layout.layout import Layout
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.step import StepPlan
from splash_core.spec.model import ModelSpec

RowKey = tuple[SeqId, int]
_STAGING_BYTES = 1 << 20


class LogitEngine(RankEngine):
    """Keeps `{(seq, position): logits}` of home rows in `rows` instead of drawing tokens."""

    def __init__(self, ctx: RankContext, comms: RankComms, layout: Layout) -> None:
        super().__init__(ctx, comms, layout)
        self.rows: dict[RowKey, torch.Tensor] = {}
        self.rows_per_rank: int | None = None
        """Pad decode steps to this."""

    def _run_rows(self, plan: StepPlan, switch: SwitchExecution | None) -> StepOutput:
        batch = build_batch(
            plan,
            self._mirrors.tables(),
            rank=self.ctx.rank,
            num_ranks=self.ctx.num_ranks,
            page_size=self.ctx.arena.map.page_size,
        )
        if self.rows_per_rank is not None and plan.num_rows == len(plan.sequences):
            batch = pad_batch(batch, self.rows_per_rank)
        attention = create_attention(plan.layout, self.ctx, batch)
        wait = _no_wait if switch is None else switch.wait_layer
        self.keep(batch, hidden_rows(self.ctx, batch, attention, wait))
        return StepOutput()

    def keep(self, batch: Batch, hidden: torch.Tensor) -> None:
        """Add the logits of the home rows' hidden states to `rows`."""
        self.keep_logits(batch, home_logits(self.ctx, hidden, batch.counts))

    def keep_logits(self, batch: Batch, logits: torch.Tensor) -> None:
        """Add the home rows' logits to `rows`."""
        for row, values in zip(range(batch.num_rows)[batch.home], logits, strict=True):
            if batch.sequence_N[row] != PADDING:
                seq = batch.sequences[batch.sequence_N[row]].seq
                self.rows[seq, int(batch.position_N[row])] = values.cpu()


def run_plans(
    checkpoint: Path,
    spec: ModelSpec,
    arena: ArenaMap,
    layout: Layout,
    plans: Sequence[StepPlan],
    dtype: torch.dtype,
    *,
    traffic: list[dict[str, Traffic]] | None = None,
    device: torch.device = CPU,
    adapt: Callable[[RankContext], RankContext] = lambda ctx: ctx,
    rows_per_rank: int | None = None,
    engine_class: type[LogitEngine] = LogitEngine,
    gpu: Callable[[], Gpu] | None = None,
    sharing: Sharing | None = None,
) -> dict[RowKey, torch.Tensor]:
    """All rows' logits after running `plans` on T in-process ranks, which may share one GPU.

    Args:
        checkpoint: the model.
        spec: of it.
        arena: of each rank.
        layout: to start in.
        plans: to run.
        dtype: to compute in.
        traffic: receives each rank's counters of the *last* plan.
        device: where tensors live.
        adapt: may exchange libraries.
        rows_per_rank: pads decode steps.
        engine_class: of each rank.
        gpu: makes each rank's streams, for switches that run on streams although tensors are on CPU.
        sharing: of the ranks, if they are to pull pages from each other's memory.
    """
    counters: dict[int, dict[str, Traffic]] = {}

    def rank_main(comms: RankComms) -> dict[RowKey, torch.Tensor]:
        counting = CountingComm(comms.compute)
        counted = replace(comms, compute=counting, sharing=sharing)
        engine = loaded(checkpoint, counted, spec, arena, layout, dtype, engine_class)
        if gpu is not None:
            engine._gpu = gpu()
        if sharing is not None:
            engine.reserve_staging(_STAGING_BYTES)
        engine.ctx, engine.rows_per_rank = adapt(engine.ctx), rows_per_rank
        for plan in plans:
            counting.reset()
            engine.step(plan)
        counters[comms.compute.rank] = counting.traffic
        return engine.rows

    merged = merged_rows(run_ranks(arena.num_ranks, rank_main, device=device))
    if traffic is not None:
        traffic.extend(counters[rank] for rank in range(arena.num_ranks))
    return merged


def loaded(
    checkpoint: Path,
    comms: RankComms,
    spec: ModelSpec,
    arena: ArenaMap,
    layout: Layout,
    dtype: torch.dtype,
    engine_class: type[LogitEngine] = LogitEngine,
) -> LogitEngine:
    """This rank's engine, its arena on the communicators' device."""
    engine = engine_class.load(
        checkpoint,
        spec=spec,
        arena=arena,
        memory=torch.zeros(arena.arena_bytes, dtype=torch.uint8, device=comms.device),
        comms=comms,
        dtype=dtype,
        layout=layout,
    )
    assert isinstance(engine, LogitEngine)
    return engine


def merged_rows(of_ranks: Iterable[dict[RowKey, torch.Tensor]]) -> dict[RowKey, torch.Tensor]:
    """What all ranks computed; each row has one home."""
    merged: dict[RowKey, torch.Tensor] = {}
    for rows in of_ranks:
        assert not merged.keys() & rows.keys(), "a row is at home on two ranks"
        merged.update(rows)
    return merged


def _no_wait(layer: int) -> None:
    del layer
