"""Decode steps replayed from a CUDA graph compute what steps compute that are launched kernel by kernel."""

from pathlib import Path

import pytest
import torch

from splash_core.attention.batch import build_batch
from splash_core.engine.graphs import DecodeGraphs
from splash_core.engine.output import StepOutput
from splash_core.engine.static_backends import decode_graphs
from splash_core.engine.switching import SwitchExecution
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import StepPlan
from tests.support.logit_engine import LogitEngine
from tests.support.mixed_steps import run_mixed

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
ROWS = 4


class GraphEngine(LogitEngine):
    """Replays decode steps."""

    replays = 0
    graphs: DecodeGraphs | None = None

    def _run_rows(self, plan: StepPlan, switch: SwitchExecution | None) -> StepOutput:
        if plan.num_rows > len(plan.sequences):
            return super()._run_rows(plan, switch)
        if self.graphs is None:
            self.graphs = decode_graphs(self.ctx, buckets=(ROWS,))
            self.graphs.record(plan.layout)
        batch = build_batch(
            plan,
            self._mirrors.tables(),
            rank=self.ctx.rank,
            num_ranks=1,
            page_size=self.ctx.arena.map.page_size,
        )
        self.keep_logits(batch, self.graphs.logits(plan.layout, batch, self._drawn.fill))
        type(self).replays += 1
        return StepOutput()


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
