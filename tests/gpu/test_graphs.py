"""Decode steps replayed from a CUDA graph compute what steps compute that are launched kernel by kernel."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from splash_core.attention.base import LayoutAttention
from splash_core.attention.batch import Batch, build_batch
from splash_core.attention.context import RankContext
from splash_core.attention.flashinfer_library import GraphBuffers
from splash_core.attention.library_backend import LibraryAttention
from splash_core.attention.registry import create_attention
from splash_core.engine.decoder import hidden_rows
from splash_core.engine.switching import SwitchExecution
from splash_core.kernels.cuda_kernels import CudaKernels
from splash_core.kernels.uploads import StepBuffer
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import StepPlan
from tests.support.logit_engine import CPU, LogitEngine
from tests.support.mixed_steps import run_mixed

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
ROWS = 4


class CapturedStep:
    """One layout's decode step of `ROWS` rows on one rank: captured on the first use."""

    def __init__(self, ctx: RankContext) -> None:
        assert isinstance(ctx.attention, LibraryAttention)
        self._buffer = StepBuffer(CUDA, 1 << 16)
        buffers = GraphBuffers(rows=ROWS, heads=ctx.spec.heads, max_pages=64)
        self._ctx = replace(
            ctx, kernels=CudaKernels(self._buffer), attention=ctx.attention.for_graph(buffers)
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self._hidden: Tensor

    def run(self, batch: Batch, layout: Layout) -> Tensor:
        attention = self._prepare(batch, layout)
        if self._graph is None:
            self._compute(attention)  # compiles and warms up
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._hidden = self._compute(attention)
        self._graph.replay()
        return self._hidden

    def _prepare(self, batch: Batch, layout: Layout) -> LayoutAttention:
        upload = self._ctx.kernels.upload
        self._buffer.begin()
        batch = replace(batch, tokens_N=upload(batch.tokens_N.numpy()), positions_N=upload(batch.position_N))
        attention = create_attention(layout, self._ctx, batch)
        self._buffer.commit()
        return attention

    def _compute(self, attention: LayoutAttention) -> Tensor:
        return hidden_rows(self._ctx, attention.batch, attention, lambda layer: None)


class GraphEngine(LogitEngine):
    """Replays decode steps."""

    replays = 0
    step_graph: CapturedStep | None = None

    def _run_rows(self, plan: StepPlan, switch: SwitchExecution | None) -> tuple[tuple[()], tuple[()]]:
        if plan.num_rows > len(plan.sequences):
            return super()._run_rows(plan, switch)
        if self.step_graph is None:
            self.step_graph = CapturedStep(self.ctx)
        batch = build_batch(
            plan,
            self._mirrors.tables(),
            rank=self.ctx.rank,
            num_ranks=1,
            page_size=self.ctx.arena.map.page_size,
            device=CPU,
            rows_per_rank=ROWS,
        )
        self.keep(batch, self.step_graph.run(batch, plan.layout))
        type(self).replays += 1
        return (), ()


@pytest.mark.parametrize("layout", Layout)
def test_replayed_steps_equal_launched_ones(wide_v2_lite: Path, layout: Layout) -> None:
    options = {"dtype": torch.bfloat16, "device": CUDA, "page_size": 64}
    expected = run_mixed(wide_v2_lite, layout, 1, rows_per_rank=ROWS, **options)
    GraphEngine.replays = 0
    rows = run_mixed(wide_v2_lite, layout, 1, engine_class=GraphEngine, **options)
    assert GraphEngine.replays == 6
    assert rows.keys() == expected.keys()
    for key, want in expected.items():
        got = rows[key]
        assert got.isfinite().all(), f"{layout}, row {key}"
        error = (got.float() - want.float()).norm() / want.float().norm()
        assert error <= 0.02, f"{layout}, row {key}: logits are off by {error:.2e} of their norm"
