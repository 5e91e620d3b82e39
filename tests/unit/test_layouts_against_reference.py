"""All layouts compute what the reference computes: fp32 against transformers, fp64 between layouts."""

from pathlib import Path

import pytest
import torch

from splash_core.ids import SeqId
from splash_core.layout.layout import Layout
from splash_core.spec.model import ModelSpec
from tests.conftest import TinyFactory
from tests.oracle import hf_decode_logits, hf_logits
from tests.support.engine_cases import LENGTHS, mixed_plans, tokens_of
from tests.support.group import arena_with
from tests.support.logit_engine import RowKey, run_plans
from tests.support.plans import PlanBuilder

CHECKPOINTS = ["tiny_v2", "tiny_v2_lite", "tiny_v3", "tiny_v3_dense"]
NUM_DECODE = 32
FP32_TOLERANCE = 1e-5
FP64_TOLERANCE = 1e-12


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def _run(checkpoint: Path, layout: Layout, num_ranks: int, dtype: torch.dtype) -> dict[RowKey, torch.Tensor]:
    """Mixed chunks of odd sizes in every form, then decode steps of all three, then of fewer than T."""
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=num_ranks, page_size=4, elem_bytes=dtype.itemsize, ordinary=40)
    plans = mixed_plans(spec, PlanBuilder(arena, layout), second=7, middle_third=3)
    return run_plans(checkpoint, spec, arena, layout, plans, dtype)


def _stack(rows: dict[RowKey, torch.Tensor], seq: int) -> torch.Tensor:
    return torch.stack([rows[SeqId(seq), position] for position in range(LENGTHS[seq])])


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_fp32_logits_equal_the_reference(
    name: str, num_ranks: int, layout: Layout, request: pytest.FixtureRequest
) -> None:
    checkpoint: Path = request.getfixturevalue(name)
    spec = ModelSpec.from_checkpoint(checkpoint)
    rows = _run(checkpoint, layout, num_ranks, torch.float32)
    for seq, length in enumerate(LENGTHS):
        expected = hf_logits(checkpoint, tokens_of(spec, length))
        assert (_stack(rows, seq) - expected).abs().max() <= FP32_TOLERANCE
    cached = hf_decode_logits(checkpoint, tokens_of(spec, LENGTHS[0]), LENGTHS[0] - NUM_DECODE)
    assert (_stack(rows, 0) - cached).abs().max() <= FP32_TOLERANCE


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_fp64_logits_equal_between_layouts(name: str, num_ranks: int, request: pytest.FixtureRequest) -> None:
    checkpoint: Path = request.getfixturevalue(name)
    results = {layout: _run(checkpoint, layout, num_ranks, torch.float64) for layout in Layout}
    for layout, rows in results.items():
        for seq in range(len(LENGTHS)):
            difference = (_stack(rows, seq) - _stack(results[Layout.TP], seq)).abs().max()
            assert difference <= FP64_TOLERANCE, f"{layout} differs from TP by {difference}"


@pytest.mark.parametrize("layout", [Layout.DP, Layout.CP])
def test_heads_that_do_not_divide_are_served_replicated(layout: Layout, tiny_checkpoint: TinyFactory) -> None:
    checkpoint = tiny_checkpoint("v3", layers=2, heads=3)
    spec = ModelSpec.from_checkpoint(checkpoint)
    rows = _run(checkpoint, layout, 2, torch.float32)
    for seq, length in enumerate(LENGTHS):
        expected = hf_logits(checkpoint, tokens_of(spec, length))
        assert (_stack(rows, seq) - expected).abs().max() <= FP32_TOLERANCE


@pytest.mark.parametrize("layout", Layout)
def test_three_ranks_share_uneven_experts_and_columns(layout: Layout, tiny_checkpoint: TinyFactory) -> None:
    checkpoint = tiny_checkpoint("v3", layers=2, heads=6, dense_intermediate=97, vocab=323)
    spec = ModelSpec.from_checkpoint(checkpoint)
    rows = _run(checkpoint, layout, 3, torch.float32)
    for seq, length in enumerate(LENGTHS):
        expected = hf_logits(checkpoint, tokens_of(spec, length))
        assert (_stack(rows, seq) - expected).abs().max() <= FP32_TOLERANCE


@pytest.mark.parametrize("layout", Layout)
def test_real_widths_of_v2_lite_agree(layout: Layout, wide_v2_lite: Path) -> None:
    spec = ModelSpec.from_checkpoint(wide_v2_lite)
    arena = arena_with(spec, num_ranks=2, page_size=16, elem_bytes=4, ordinary=8)
    tokens = tokens_of(spec, 24)
    builder = PlanBuilder(arena, layout)
    seq = builder.start(tokens)
    plans = [builder.step({seq: 19}), *(builder.step({seq: 1}) for _ in range(5))]
    rows = run_plans(wide_v2_lite, spec, arena, layout, plans, torch.float32)
    result = torch.stack([rows[seq, position] for position in range(len(tokens))])
    assert (result - hf_logits(wide_v2_lite, tokens)).abs().max() <= FP32_TOLERANCE
