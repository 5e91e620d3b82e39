"""The engine on real GPUs, T = all of them, in fp32: logits of every layout, and tokens over every switch.

Run with `python -m pytest -m gpu tests/gpu/test_engine.py`. The reference is transformers on the CPU.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from splash_core.dist.launch import Backend
from splash_core.engine.loading import loaded_engine
from splash_core.ids import RankId, SeqId
from splash_core.layout.layout import Layout
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import SwitchMode
from tests.distributed.harness import RankPool
from tests.oracle import hf_generate_greedy
from tests.support.engine_cases import (
    DIRECTIONS,
    FAMILIES,
    PROMPTS,
    check_mixed,
    check_spilled_pages,
    check_switched_rows,
    check_tokens_over_a_switch,
    generate,
    logits_on_rank,
    mixed_plans,
    switching_plans,
)
from tests.support.gpus import NUM_GPUS, run_to_the_end
from tests.support.group import Group, arena_with
from tests.support.logit_engine import merged_rows
from tests.support.plans import PlanBuilder
from tests.support.rank_configs import rank_config
from tests.support.ranks import ProcessRanks, portable

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

WAYS = [(SwitchMode.BLOCKING, False), (SwitchMode.OVERLAPPED, False), (SwitchMode.OVERLAPPED, True)]
"""Modes, and whether ranks pull state from each other's memory or exchange it through NCCL."""


# --------------------------------------------------------------------------------------- logits


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    assert NUM_GPUS > 0, "torch sees no GPU"
    folder = tmp_path_factory.mktemp("ranks")
    with RankPool(NUM_GPUS, folder, backend=Backend.NCCL, device="cuda") as ranks:
        yield ranks


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_the_reference_on_cpu(
    name: str, layout: Layout, pool: RankPool, request: pytest.FixtureRequest
) -> None:
    checkpoint: Path = request.getfixturevalue(name)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=NUM_GPUS, page_size=4, elem_bytes=4, ordinary=40)
    plans = mixed_plans(spec, PlanBuilder(arena, layout))
    answers = pool.run(logits_on_rank, checkpoint, portable(arena, torch.float32), layout, plans)
    rows = merged_rows(answer[0] for answer in answers)
    check_mixed(checkpoint, rows, f"{name} {layout} T={NUM_GPUS}")


# -------------------------------------------------------------------------------------- switches


@pytest.mark.parametrize(("mode", "pulls"), WAYS)
@pytest.mark.parametrize(("before", "after"), DIRECTIONS)
def test_a_switch_brings_the_bytes_of_its_manifest_and_tells_its_times(
    before: Layout, after: Layout, mode: SwitchMode, pulls: bool, pool: RankPool, tiny_v3: Path
) -> None:
    spec = ModelSpec.from_checkpoint(tiny_v3)
    arena = arena_with(spec, num_ranks=NUM_GPUS, page_size=4, elem_bytes=4, ordinary=40)
    plans = switching_plans(spec, arena, before, after, mode)
    manifest = plans[-1].manifest
    assert manifest is not None
    answers = pool.run(logits_on_rank, tiny_v3, portable(arena, torch.float32), before, plans, pulls)
    moves = bool(manifest.weight_bytes_per_layer or manifest.layer_chunks)
    for _, _, times in answers:
        assert len(times.layer_transfer_s) == (spec.layers if moves else 0)
        assert all(seconds > 0 for seconds in times.layer_transfer_s), times
        assert 0 <= times.first_wait_s <= times.wait_s < 5, times
    rows = merged_rows(answer[0] for answer in answers)
    check_switched_rows(tiny_v3, plans, rows, [answer[1] for answer in answers])


@pytest.fixture(scope="module", params=FAMILIES)
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    assert NUM_GPUS > 0, "torch sees no GPU"
    checkpoint: Path = request.getfixturevalue(request.param)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=NUM_GPUS, page_size=4, elem_bytes=4, ordinary=60)
    ranks = ProcessRanks(
        checkpoint, arena, tmp_path_factory.mktemp("group"), dtype=torch.float32, device="cuda"
    )
    yield Group(ranks)
    ranks.close()


@pytest.mark.parametrize("mode", list(SwitchMode))
@pytest.mark.parametrize(("before", "after"), DIRECTIONS)
def test_greedy_tokens_over_a_switch_equal_those_without(
    group: Group, before: Layout, after: Layout, mode: SwitchMode
) -> None:
    expected, none = generate(group, before)
    assert none == []
    check_tokens_over_a_switch(group, expected, before, after, mode)


def test_pages_in_borrowed_slots_survive_a_switch_that_needs_them(tiny_v3: Path, tmp_path: Path) -> None:
    spec = ModelSpec.from_checkpoint(tiny_v3)
    arena = arena_with(spec, num_ranks=NUM_GPUS, page_size=1, elem_bytes=4, ordinary=24)
    if NUM_GPUS == 1:
        assert not arena.borrowed, "a rank alone has no shards of others, under which pages could lie"
        return
    ranks = ProcessRanks(tiny_v3, arena, tmp_path, dtype=torch.float32, device="cuda")
    check_spilled_pages(Group(ranks), tiny_v3)
    ranks.close()


# --------------------------------------------------------------------------------------- loading


def _from_configuration(rank: int, num_ranks: int, checkpoint: Path, folder: Path) -> list[int]:
    """What a rank that is configured like a service's draws for a prompt."""
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=num_ranks, page_size=4, elem_bytes=4, ordinary=20)
    config = rank_config(
        checkpoint,
        folder,
        num_ranks=num_ranks,
        device="cuda",
        arena_bytes=arena.arena_bytes,
        start_timeout_s=400.0,
    )
    progress: list[tuple[int, int]] = []
    with loaded_engine(
        config,
        RankId(rank),
        memory=None,
        spec=spec,
        arena=arena,
        progress=lambda done, total: progress.append((done, total)),
    ) as engine:
        assert engine.ctx.device == torch.device("cuda", rank)
        assert engine.ctx.arena.pages_SLPC.device == engine.ctx.device
        assert progress[-1][0] == progress[-1][1] > 0
        builder = PlanBuilder(arena, Layout.DP)
        builder.start(PROMPTS[3])
        result = engine.step(builder.step({SeqId(0): len(PROMPTS[3])}))
        return [sampled.token for sampled in result.tokens]


def test_a_rank_loads_from_its_configuration(tiny_v3: Path, tmp_path: Path) -> None:
    assert NUM_GPUS > 0, "torch sees no GPU"
    drawn = run_to_the_end(_from_configuration, NUM_GPUS, tiny_v3, tmp_path)
    assert [token for tokens in drawn for token in tokens] == hf_generate_greedy(tiny_v3, PROMPTS[3], 1)
