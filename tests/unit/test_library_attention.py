"""`LibraryAttention` turns steps into the runs that a library takes: proven with a library in plain torch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from splash_core.attention import expanded, library_backend
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.attention.flashinfer_library import GraphBuffers
from splash_core.attention.library_backend import GraphAttention, LibraryAttention, PlannedRuns
from splash_core.attention.runs import Runs
from splash_core.kernels.base import IntArray
from splash_core.kernels.reference import attend_absorbed
from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import StepPlan
from splash_core.spec.model import ModelSpec
from tests.support.group import arena_with
from tests.support.logit_engine import RowKey, run_plans
from tests.support.plans import PlanBuilder
from tests.support.torch_library import TorchLibrary

LENGTHS = (75, 41, 12)
TOLERANCE = 1e-5
Adapt = Callable[[RankContext], RankContext]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def with_library(ctx: RankContext) -> RankContext:
    library = TorchLibrary(scale=ctx.scale, latent=ctx.spec.kv_lora_rank)
    return replace(ctx, attention=LibraryAttention(library, ctx.kernels))


def mixed_plans(checkpoint: Path, layout: Layout, num_ranks: int) -> tuple[list[StepPlan], ModelSpec]:
    """Chunks that share steps with decode rows, in every form, then decode rows."""
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=num_ranks, page_size=4, elem_bytes=4, ordinary=40)
    builder = PlanBuilder(arena, layout)
    generator = torch.Generator().manual_seed(5)
    long, middle, short = (
        builder.start(torch.randint(3, spec.vocab - 1, (length,), generator=generator).tolist())
        for length in LENGTHS
    )
    expanded_form = AttentionForm.ABSORBED if layout is Layout.DOP else AttentionForm.EXPANDED
    plans = [
        builder.step({long: 13}, form=expanded_form, cp_storage=CpStorage.PASS_KV),
        builder.step({long: 7, middle: 17}, cp_storage=CpStorage.PASS_KV),
        builder.step({long: 18, middle: 3, short: 9}, form=expanded_form),
        builder.step({long: 9, middle: 1, short: 1}, form=expanded_form, cp_storage=CpStorage.PASS_KV),
        builder.step({short: 1, long: 5, middle: 1}),
        *(builder.step({long: 1, middle: 1}) for _ in range(6)),
    ]
    return plans, spec


def run_mixed(
    checkpoint: Path, layout: Layout, num_ranks: int, adapt: Adapt, rows_per_rank: int | None = None
) -> dict[RowKey, torch.Tensor]:
    plans, spec = mixed_plans(checkpoint, layout, num_ranks)
    arena = arena_with(spec, num_ranks=num_ranks, page_size=4, elem_bytes=4, ordinary=40)
    return run_plans(
        checkpoint, spec, arena, layout, plans, torch.float32, adapt=adapt, rows_per_rank=rows_per_rank
    )


def assert_equal(rows: dict[RowKey, torch.Tensor], expected: dict[RowKey, torch.Tensor]) -> None:
    assert rows.keys() == expected.keys()
    worst = max((rows[key] - expected[key]).abs().max().item() for key in expected)
    assert worst <= TOLERANCE, worst


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_equals_plain_torch_in_every_layout(
    tiny_v3: Path, layout: Layout, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small limits: several pieces per plan, several groups of keys, several tiles of heads.
    monkeypatch.setattr(library_backend, "TILES_PER_PLAN", 8)
    monkeypatch.setattr(library_backend, "EXPANDED_BYTES", 20_000)
    monkeypatch.setattr(expanded, "EXPANDED_BYTES", 9_000)
    expected = run_mixed(tiny_v3, layout, num_ranks, lambda ctx: ctx)
    assert_equal(run_mixed(tiny_v3, layout, num_ranks, with_library), expected)


@pytest.mark.parametrize("layout", Layout)
def test_padded_decode_steps_give_the_same_logits(tiny_v3: Path, layout: Layout) -> None:
    expected = run_mixed(tiny_v3, layout, 2, lambda ctx: ctx)
    assert_equal(run_mixed(tiny_v3, layout, 2, lambda ctx: ctx, rows_per_rank=3), expected)
    assert_equal(run_mixed(tiny_v3, layout, 2, with_library, rows_per_rank=3), expected)


class Capturing(LibraryAttention):
    """Padded steps go to a plan that was made for a graph, the others to this object."""

    graph: GraphAttention

    def paged(self, batch: Batch, rows_N: IntArray) -> library_backend.LibraryPrepared:
        return self.graph.paged(batch, rows_N) if batch.padded else super().paged(batch, rows_N)


@pytest.mark.parametrize("layout", Layout)
def test_a_graph_plan_serves_padded_steps(tiny_v3: Path, layout: Layout) -> None:
    def adapt(ctx: RankContext) -> RankContext:
        library = TorchLibrary(scale=ctx.scale, latent=ctx.spec.kv_lora_rank)
        attention = Capturing(library, ctx.kernels)
        heads = ctx.spec.heads // 2 if layout is Layout.TP else ctx.spec.heads
        rows = 3 if layout in (Layout.DP, Layout.DOP) else 6
        attention.graph = attention.for_graph(GraphBuffers(rows=rows, heads=heads, max_pages=100))
        return replace(ctx, attention=attention)

    expected = run_mixed(tiny_v3, layout, 2, lambda ctx: ctx)
    assert_equal(run_mixed(tiny_v3, layout, 2, adapt, rows_per_rank=3), expected)


def test_heads_that_do_not_divide_a_tile_are_planned_row_by_row() -> None:
    """A causal limit would be rounded down to whole rows of a tile."""
    library = TorchLibrary(scale=0.3, latent=8)
    attention = LibraryAttention(library, TorchKernels(torch.device("cpu")))
    runs = Runs(
        num_rows=5,
        page_size=4,
        first_R=np.array([0]),
        count_R=np.array([5]),
        num_keys_R=np.array([11]),
        page_R=np.array([0]),
        slots_M=np.array([2, 0, 1]),
    )
    pages_SPC = torch.randn(3, 4, 10)
    for heads in (3, 4, 128, 160):
        q_NHC = torch.randn(5, heads, 10)
        planned = PlannedRuns.make(attention, runs, heads)
        planned_runs = planned.pieces[0][1].runs  # pyright: ignore[reportAttributeAccessIssue]
        assert planned_runs.are_single_rows == (heads in (3, 160))
        out_NHr, lse_NH = planned.run(q_NHC, pages_SPC, 8)
        kv_KC = pages_SPC[[2, 0, 1]].flatten(0, 1)[:11]
        visible_NK = torch.ones(5, 11, dtype=torch.bool).tril(6)
        want, want_lse = attend_absorbed(q_NHC, kv_KC, visible_NK, scale=0.3, latent=8)
        assert torch.allclose(out_NHr, want, atol=1e-6)
        assert torch.allclose(lse_NH, want_lse, atol=1e-6)
