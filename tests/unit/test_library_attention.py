"""`LibraryAttention` turns steps into the runs that a library takes: proven with a library in plain torch."""

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
from splash_core.attention.registry import attends
from splash_core.attention.runs import Runs
from splash_core.kernels.base import IntArray
from splash_core.kernels.reference import attend_absorbed
from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.layout.layout import Layout
from tests.support.logit_engine import RowKey
from tests.support.mixed_steps import run_mixed
from tests.support.torch_library import TorchLibrary

TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def with_library(ctx: RankContext) -> RankContext:
    library = TorchLibrary(scale=ctx.scale, latent=ctx.spec.kv_lora_rank)
    return replace(ctx, attention=LibraryAttention(library, ctx.kernels))


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
    expected = run_mixed(tiny_v3, layout, num_ranks)
    assert_equal(run_mixed(tiny_v3, layout, num_ranks, adapt=with_library), expected)


@pytest.mark.parametrize("layout", Layout)
def test_padded_decode_steps_give_the_same_logits(tiny_v3: Path, layout: Layout) -> None:
    expected = run_mixed(tiny_v3, layout, 2)
    assert_equal(run_mixed(tiny_v3, layout, 2, rows_per_rank=3), expected)
    assert_equal(run_mixed(tiny_v3, layout, 2, adapt=with_library, rows_per_rank=3), expected)


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
        rows, heads = attends(layout, ctx, 3)
        attention.graph = attention.for_graph(GraphBuffers(rows=rows, heads=heads, max_pages=100))
        return replace(ctx, attention=attention)

    expected = run_mixed(tiny_v3, layout, 2)
    assert_equal(run_mixed(tiny_v3, layout, 2, adapt=adapt, rows_per_rank=3), expected)


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
