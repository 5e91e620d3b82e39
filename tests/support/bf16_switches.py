"""Decode rows in bf16 while a group of threads switches to another layout and back.

In bf16 a sum rounds by its order, so layouts agree to rounding only, and tokens may differ; but a page that a
switch leaves in a wrong slot is a hundred times worse than rounding.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from splash_core.attention.context import RankContext
from splash_core.layout.layout import Layout
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import SwitchMode
from tests.support.engine_cases import tokens_of
from tests.support.group import arena_with
from tests.support.logit_engine import RowKey, run_plans
from tests.support.one_device import streams_on
from tests.support.plans import PlanBuilder
from tests.support.thread_memory import ThreadSharing

BF16 = torch.bfloat16
LENGTHS = (150, 75, 41, 12)
_STEPS = 2
"""Decode steps in a layout."""
_STAGES = 3
WORST = 1e-3
"""Mean KL divergence per row. With DeepSeek-V2-Lite's widths rounding gives 3e-5 to 1e-4; one page of the
shortest histories in a wrong slot, once, 1e-2."""


def rows_over_switches(
    checkpoint: Path,
    num_ranks: int,
    before: Layout,
    after: Layout,
    *,
    device: torch.device,
    dtype: torch.dtype = BF16,
    pulls: bool = False,
    adapt: Callable[[RankContext], RankContext] = lambda ctx: ctx,
) -> dict[RowKey, Tensor]:
    """Logits of all rows: chunks, then decode steps in one layout, in the other, and in the first again."""
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=num_ranks, page_size=16, elem_bytes=dtype.itemsize, ordinary=40)
    builder = PlanBuilder(arena, before)
    seqs = [builder.start(tokens_of(spec, length)) for length in LENGTHS]
    chunks = {seq: length - _STEPS * _STAGES for seq, length in zip(seqs, LENGTHS, strict=True)}
    plans, rows = [builder.step(chunks)], dict.fromkeys(seqs, 1)
    for layout in (before, after, before):
        same = layout is builder.layout
        plans.append(builder.step(rows) if same else builder.switch(layout, rows, mode=SwitchMode.OVERLAPPED))
        plans += [builder.step(rows) for _ in range(_STEPS - 1)]
    return run_plans(
        checkpoint,
        spec,
        arena,
        before,
        plans,
        dtype,
        device=device,
        adapt=adapt,
        gpu=streams_on(device) if pulls else None,
        sharing=ThreadSharing(num_ranks, device) if pulls else None,
    )


def switched_divergence(rows: dict[RowKey, Tensor], exact: dict[RowKey, Tensor]) -> float:
    """Of the rows after the first switch."""
    assert rows.keys() == exact.keys()
    after = [key for key in exact if key[1] >= LENGTHS[key[0]] - _STEPS * (_STAGES - 1)]
    return divergence({key: rows[key] for key in after}, {key: exact[key] for key in after})


def divergence(rows: dict[RowKey, Tensor], expected: dict[RowKey, Tensor]) -> float:
    """Mean KL divergence per row. A largest error would be decided by a tie in some router."""
    assert rows.keys() == expected.keys()
    got = torch.stack([rows[key] for key in expected]).double().log_softmax(dim=-1)
    want = torch.stack(list(expected.values())).double().log_softmax(dim=-1)
    assert torch.isfinite(got).all()
    return (want.exp() * (want - got)).sum(dim=-1).mean().item()
