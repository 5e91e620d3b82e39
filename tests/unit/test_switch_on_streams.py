"""The twelve switches with real engines, their moves on streams: rows compute what they compute unswitched.

The streams are stand-ins that do everything when it is issued, so this is the order of the moves, the staging
of two tracks and the whole path but CUDA itself. On GPUs: tests/gpu.
"""

from itertools import permutations
from pathlib import Path

import pytest
import torch

from splash_core.ids import SeqId
from splash_core.layout.layout import Layout
from splash_core.layout.slots import ArenaMap
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import SwitchMode
from tests.conftest import TinyFactory
from tests.support.fake_gpu import ImmediateGpu
from tests.support.group import arena_with
from tests.support.logit_engine import RowKey, run_plans
from tests.support.plans import PlanBuilder
from tests.support.small_model import small_checkpoint
from tests.support.thread_memory import ThreadSharing

RANKS = 2
LENGTHS = (15, 11, 6)
STEPS_AFTER = 3


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: TinyFactory) -> Path:
    torch.set_num_threads(1)
    return small_checkpoint(tiny_checkpoint)


def _arena(spec: ModelSpec) -> ArenaMap:
    return arena_with(spec, num_ranks=RANKS, page_size=2, elem_bytes=8, ordinary=40)


def _run(
    checkpoint: Path,
    before: Layout,
    after: Layout | None,
    mode: SwitchMode = SwitchMode.OVERLAPPED,
    *,
    pulled: bool = False,
) -> dict[RowKey, torch.Tensor]:
    """Chunks in one layout, then decode steps, of which the first switches to another (if any)."""
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = _arena(spec)
    builder = PlanBuilder(arena, before)
    generator = torch.Generator().manual_seed(1)
    seqs = [
        builder.start(torch.randint(3, spec.vocab - 1, (length,), generator=generator).tolist())
        for length in LENGTHS
    ]
    plans = [builder.step({s: n - STEPS_AFTER for s, n in zip(seqs, LENGTHS, strict=True)})]
    decode: dict[SeqId, int] = dict.fromkeys(seqs, 1)
    plans.append(builder.step(decode) if after is None else builder.switch(after, decode, mode=mode))
    plans += [builder.step(decode) for _ in range(STEPS_AFTER - 1)]
    sharing = ThreadSharing(RANKS) if pulled else None
    return run_plans(checkpoint, spec, arena, before, plans, torch.float64, gpu=ImmediateGpu, sharing=sharing)


@pytest.fixture(scope="module")
def unswitched(checkpoint: Path) -> dict[RowKey, torch.Tensor]:
    return _run(checkpoint, Layout.TP, None)


@pytest.mark.parametrize("pulled", [False, True], ids=["exchanged", "pulled"])
@pytest.mark.parametrize(
    ("before", "after", "mode"),
    [
        *((before, after, SwitchMode.OVERLAPPED) for before, after in permutations(Layout, 2)),
        (Layout.DOP, Layout.CP, SwitchMode.BLOCKING),
    ],
)
def test_rows_after_a_switch_are_those_without(
    before: Layout,
    after: Layout,
    mode: SwitchMode,
    pulled: bool,
    checkpoint: Path,
    unswitched: dict[RowKey, torch.Tensor],
) -> None:
    rows = _run(checkpoint, before, after, mode, pulled=pulled)
    assert rows.keys() == unswitched.keys()
    worst = max(float((rows[key] - unswitched[key]).abs().max()) for key in rows)
    assert worst <= 1e-12, f"{before} → {after} {mode}: logits differ by {worst}"
