"""Three sequences whose chunks and decode rows share steps, in every form of attention."""

from collections.abc import Callable
from pathlib import Path

import torch

from splash_core.attention.context import RankContext
from splash_core.dist.order import CPU
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import Layout
from splash_core.spec.model import ModelSpec
from tests.support.group import arena_with
from tests.support.logit_engine import LogitEngine, RowKey, run_plans
from tests.support.plans import PlanBuilder

LENGTHS = (75, 41, 12)


def run_mixed(
    checkpoint: Path,
    layout: Layout,
    num_ranks: int,
    *,
    dtype: torch.dtype = torch.float32,
    page_size: int = 4,
    device: torch.device = CPU,
    adapt: Callable[[RankContext], RankContext] = lambda ctx: ctx,
    rows_per_rank: int | None = None,
    engine_class: type[LogitEngine] = LogitEngine,
) -> dict[RowKey, torch.Tensor]:
    """Logits of all rows; decode steps are padded if `rows_per_rank` is given."""
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=num_ranks, page_size=page_size, elem_bytes=dtype.itemsize, ordinary=40)
    builder = PlanBuilder(arena, layout)
    generator = torch.Generator().manual_seed(5)
    long, middle, short = (
        builder.start(torch.randint(3, spec.vocab - 1, (length,), generator=generator).tolist())
        for length in LENGTHS
    )
    expanded = AttentionForm.ABSORBED if layout is Layout.DOP else AttentionForm.EXPANDED
    plans = [
        builder.step({long: 13}, form=expanded, cp_storage=CpStorage.PASS_KV),
        builder.step({long: 7, middle: 17}, cp_storage=CpStorage.PASS_KV),
        builder.step({long: 18, middle: 3, short: 9}, form=expanded),
        builder.step({long: 9, middle: 1, short: 1}, form=expanded, cp_storage=CpStorage.PASS_KV),
        builder.step({short: 1, long: 5, middle: 1}),
        *(builder.step({long: 1, middle: 1}) for _ in range(6)),
    ]
    return run_plans(
        checkpoint,
        spec,
        arena,
        layout,
        plans,
        dtype,
        device=device,
        adapt=adapt,
        rows_per_rank=rows_per_rank,
        engine_class=engine_class,
    )
