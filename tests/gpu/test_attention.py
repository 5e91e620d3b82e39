"""FlashInfer behind the attention seam: its calls mean what plain torch says, and layouts agree."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from splash_core.attention.context import RankContext
from splash_core.attention.expanded import expand_keys
from splash_core.attention.flashinfer_library import FlashInferLibrary, GraphBuffers
from splash_core.attention.library_backend import LibraryAttention, PlannedRuns
from splash_core.attention.runs import Runs
from splash_core.attention.torch_backend import TorchAttention
from splash_core.kernels.cuda_kernels import CudaKernels
from splash_core.kernels.uploads import PinnedUploads
from splash_core.layout.layout import Layout
from splash_core.model.rope import softmax_scale
from splash_core.spec.model import ModelSpec
from tests.support.bf16_switches import divergence
from tests.support.mixed_steps import run_mixed
from tests.support.torch_library import TorchLibrary

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
BF16 = torch.bfloat16
LATENT, ROPE = 512, 64


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(12)


@pytest.fixture(scope="module")
def spec(wide_v2_lite: Path) -> ModelSpec:
    """Head widths of DeepSeek-V2/V3: r 512, p 64, n 128, v 128."""
    return ModelSpec.from_checkpoint(wide_v2_lite)


@pytest.fixture(scope="module")
def library(spec: ModelSpec) -> FlashInferLibrary:
    return FlashInferLibrary(spec, BF16, CUDA)


@pytest.fixture(scope="module")
def truth(spec: ModelSpec) -> TorchLibrary:
    return TorchLibrary(scale=softmax_scale(spec), latent=LATENT)


@pytest.fixture(scope="module")
def large_arena() -> Iterator[Tensor]:
    """20 GB of pages of DeepSeek-V3's shape, of which each test fills what it uses."""
    slots = 20 * 10**9 // (61 * 64 * (LATENT + ROPE) * 2)
    yield torch.zeros(slots, 61, 64, LATENT + ROPE, dtype=BF16, device=CUDA)
    torch.cuda.empty_cache()


def make_runs(work: Sequence[tuple[int, int]], *, page_size: int, slots: int, highest: bool = False) -> Runs:
    """Runs of (rows, keys), each with pages of its own, at random or at the end of the arena."""
    counts, keys = (np.array(values, dtype=np.int64) for values in zip(*work, strict=True))
    pages = -(-keys // page_size)
    assert pages.sum() <= slots, "the test's arena is too small"
    order = np.random.default_rng(3).permutation(slots)
    slots_M = slots - 1 - np.arange(pages.sum()) if highest else order[: pages.sum()]
    return Runs(
        num_rows=int(counts.sum()),
        page_size=page_size,
        first_R=np.cumsum(counts) - counts,
        count_R=counts,
        num_keys_R=keys,
        page_R=np.cumsum(pages) - pages,
        slots_M=slots_M,
    )


def check_mla(
    library: FlashInferLibrary, truth: TorchLibrary, runs: Runs, pages_SPC: Tensor, heads: int
) -> None:
    """Outputs within 1 % of fp32's largest, log-sum-exps within 0.01, and nothing for rows without keys."""
    q_NHC = torch.randn(runs.num_rows, heads, LATENT + ROPE, device=CUDA, dtype=BF16)
    plans = LibraryAttention(library, CudaKernels(PinnedUploads(CUDA)))
    out_NHr, lse_NH = PlannedRuns.make(plans, runs, heads).run(q_NHC, pages_SPC, LATENT)
    used_M = torch.from_numpy(np.unique(runs.slots_M)).to(CUDA)
    compact = replace(runs, slots_M=np.searchsorted(np.unique(runs.slots_M), runs.slots_M))
    plan = truth.mla_plan()
    plan.plan(compact, heads=heads)
    want, want_lse = torch.empty_like(out_NHr, dtype=torch.float32), torch.empty_like(lse_NH)
    plan.run(q_NHC.float(), pages_SPC[used_M].float(), want, want_lse)
    what = f"{heads} heads, runs {list(zip(runs.count_R, runs.num_keys_R, strict=True))[:8]}"
    empty_N = torch.isneginf(want_lse[:, 0])
    assert torch.equal(torch.isneginf(lse_NH), torch.isneginf(want_lse)), f"{what}: rows without keys"
    assert (out_NHr[empty_N] == 0).all(), f"{what}: output of rows without keys"
    if not empty_N.all():
        error = (out_NHr.float() - want).abs().max() / want.abs().max()
        lse_error = (lse_NH - want_lse)[~empty_N].abs().max()
        assert error <= 1e-2, f"{what}: output is off by {error:.2e} of its largest"
        assert lse_error <= 1e-2, f"{what}: log-sum-exp is off by {lse_error:.2e}"


@pytest.mark.parametrize("heads", [128, 64, 32, 16, 4])
@pytest.mark.parametrize(
    "work",
    [
        [(1, 1)],
        [(1, 0), (1, 63), (1, 64), (1, 65), (1, 0), (1, 5000)],
        [(1, 0)] * 5,
        [(1, 700)] * 40,
        [(1, 1024), (1, 3), (37, 37), (1, 0), (130, 1500), (2, 66), (64, 64)],
        [(700, 700), (300, 4000)],
    ],
)
def test_paged_attention_equals_the_reference(
    library: FlashInferLibrary, truth: TorchLibrary, work: list[tuple[int, int]], heads: int
) -> None:
    pages_SPC = torch.randn(600, 3, 64, LATENT + ROPE, device=CUDA, dtype=BF16)[:, 1]
    check_mla(library, truth, make_runs(work, page_size=64, slots=600), pages_SPC, heads)


@pytest.mark.parametrize("heads", [12, 48])
def test_heads_that_do_not_divide_a_tile(library: FlashInferLibrary, truth: TorchLibrary, heads: int) -> None:
    pages_SPC = torch.randn(100, 2, 64, LATENT + ROPE, device=CUDA, dtype=BF16)[:, 1]
    runs = make_runs([(65, 129), (1, 64), (20, 20)], page_size=64, slots=100)
    check_mla(library, truth, runs, pages_SPC, heads)


@pytest.mark.parametrize("page_size", [1, 16])
def test_other_page_sizes(library: FlashInferLibrary, truth: TorchLibrary, page_size: int) -> None:
    pages_SPC = torch.randn(4000 // page_size, page_size, LATENT + ROPE, device=CUDA, dtype=BF16)
    runs = make_runs([(1, 900), (50, 333), (1, 0)], page_size=page_size, slots=4000 // page_size)
    check_mla(library, truth, runs, pages_SPC, 16)


def test_the_highest_slots_of_a_large_arena(
    library: FlashInferLibrary, truth: TorchLibrary, large_arena: Tensor
) -> None:
    slots = large_arena.shape[0]
    runs = make_runs([(1, 4000), (30, 300), (1, 64)], page_size=64, slots=slots, highest=True)
    for layer in (0, 60):
        used = torch.from_numpy(runs.slots_M).to(CUDA)
        large_arena[used, layer] = torch.randn(len(used), 64, LATENT + ROPE, device=CUDA, dtype=BF16)
        check_mla(library, truth, runs, large_arena[:, layer], 128)


def test_more_rows_than_one_plan_holds(library: FlashInferLibrary, truth: TorchLibrary) -> None:
    """128 heads: a plan takes 5,376 rows; the run is cut, its pages are shared."""
    pages_SPC = torch.randn(120, 1, 64, LATENT + ROPE, device=CUDA, dtype=BF16)[:, 0]
    runs = make_runs([(1, 100), (5990, 6000), (1, 7)], page_size=64, slots=120)
    assert len(list(runs.pieces(5376))) == 2
    check_mla(library, truth, runs, pages_SPC, 128)


def test_a_graph_reads_the_plan_that_is_made_before_its_replay(
    library: FlashInferLibrary, truth: TorchLibrary
) -> None:
    heads, rows = 16, 6
    pages_SPC = torch.randn(300, 2, 64, LATENT + ROPE, device=CUDA, dtype=BF16)[:, 1]
    plan = library.graph_plan(GraphBuffers(rows=rows, heads=heads, max_pages=300))
    q_NHC = torch.randn(rows, heads, LATENT + ROPE, device=CUDA, dtype=BF16)
    out_NHr = torch.empty(rows, heads, LATENT, device=CUDA, dtype=BF16)
    lse_NH = torch.empty(rows, heads, device=CUDA)
    plan.plan(make_runs([(1, 0)] * rows, page_size=64, slots=300), heads=heads)
    plan.run(q_NHC, pages_SPC, out_NHr, lse_NH)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(q_NHC, pages_SPC, out_NHr, lse_NH)
    for work in ([(1, 5)] * rows, [(1, 6000), (1, 0), (1, 64), (1, 0), (1, 999), (1, 1)]):
        runs = make_runs(work, page_size=64, slots=300)
        plan.plan(runs, heads=heads)
        graph.replay()
        want_plan = truth.mla_plan()
        want_plan.plan(runs, heads=heads)
        want, want_lse = torch.empty_like(out_NHr, dtype=torch.float32), torch.empty_like(lse_NH)
        want_plan.run(q_NHC.float(), pages_SPC.float(), want, want_lse)
        seen = ~torch.isneginf(want_lse)
        assert torch.equal(~torch.isneginf(lse_NH), seen), work
        assert (out_NHr.float() - want).abs().max() <= 1e-2 * want.abs().max(), work
        assert (lse_NH - want_lse)[seen].abs().max() <= 1e-2, work


@pytest.mark.parametrize(("rows", "keys"), [(2, 2), (128, 128), (129, 1000), (1000, 1000), (77, 4097)])
def test_expanded_prefill_equals_the_reference(
    library: FlashInferLibrary, truth: TorchLibrary, spec: ModelSpec, rows: int, keys: int
) -> None:
    """Keys expanded in place, heads taken in tiles, queries strided: as `attend_group` calls it."""
    heads = 16
    kv_KC = torch.randn(keys + 5, LATENT + ROPE, device=CUDA, dtype=BF16)
    kv_b_HXr = torch.randn(heads, spec.nope_dim + spec.v_dim, LATENT, device=CUDA, dtype=BF16) / LATENT**0.5
    q_NHD = torch.randn(rows + 3, heads, spec.qk_dim, device=CUDA, dtype=BF16)[3:]
    some = slice(8, 13)
    k_KHD, v_KHv = expand_keys(kv_KC, kv_b_HXr[some], nope=spec.nope_dim)
    wide = kv_KC.float()[:, :LATENT] @ kv_b_HXr[some].float().flatten(0, 1).T
    wide_KHX = wide.view(keys + 5, 5, -1)
    k_error = (k_KHD[..., : spec.nope_dim].float() - wide_KHX[..., : spec.nope_dim]).abs().max()
    v_error = (v_KHv.float() - wide_KHX[..., spec.nope_dim :]).abs().max()
    assert max(k_error, v_error) <= 1e-2 * wide.abs().max(), (
        f"expansion is off by {k_error:.2e}, {v_error:.2e}"
    )
    assert torch.equal(k_KHD[..., spec.nope_dim :], kv_KC[:, None, LATENT:].expand(-1, 5, -1))
    got = library.prefill(q_NHD[:, some], k_KHD[:keys], v_KHv[:keys])
    want = truth.prefill(q_NHD[:, some].float(), k_KHD[:keys].float(), v_KHv[:keys].float())
    error = (got.float() - want).abs().max() / want.abs().max()
    assert error <= 1e-2, f"{rows} rows, {keys} keys: off by {error:.2e} of the largest"


# ------------------------------------------------------------------------------------------ whole models


def with_plain_torch(ctx: RankContext) -> RankContext:
    return replace(ctx, attention=TorchAttention(ctx.kernels))


@pytest.mark.parametrize("num_ranks", [1, 4])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("checkpoint", ["tiny_v2", "tiny_v3", "tiny_v3_dense"])
def test_fp32_models_equal_the_cpu(
    checkpoint: str, layout: Layout, num_ranks: int, request: pytest.FixtureRequest
) -> None:
    directory: Path = request.getfixturevalue(checkpoint)
    expected = run_mixed(directory, layout, num_ranks)
    for padded in (None, 3):
        rows = run_mixed(directory, layout, num_ranks, device=CUDA, rows_per_rank=padded)
        worst = max((rows[key] - expected[key]).abs().max().item() for key in expected)
        assert worst <= 1e-4, f"{layout} on {num_ranks} ranks, padded to {padded}: {worst:.2e}"


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("layout", Layout)
def test_bf16_layouts_with_flashinfer_are_as_close_as_plain_torch(
    wide_v2_lite: Path, layout: Layout, num_ranks: int
) -> None:
    """Both bf16 runs against fp32 on the GPU, over chunks in both forms and decode rows, padded and not."""
    options = {"device": CUDA, "page_size": 64}
    adapt: Callable[[RankContext], RankContext]
    exact = run_mixed(wide_v2_lite, layout, num_ranks, **options)
    adapt = with_plain_torch
    plain = divergence(run_mixed(wide_v2_lite, layout, num_ranks, dtype=BF16, adapt=adapt, **options), exact)

    def checked(ctx: RankContext) -> RankContext:
        assert isinstance(ctx.attention, LibraryAttention), "bf16 of these widths is FlashInfer's"
        return ctx

    for padded in (None, 4):
        rows = run_mixed(
            wide_v2_lite, layout, num_ranks, dtype=BF16, adapt=checked, rows_per_rank=padded, **options
        )
        found = divergence(rows, exact)
        assert found <= 2 * plain + 1e-4, f"padded to {padded}: KL {found:.2e}, plain torch {plain:.2e}"
