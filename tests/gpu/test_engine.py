"""The engine on real GPUs, T = all of them, in fp32: logits of every layout, and tokens over every switch.

Run with `python -m pytest -m gpu tests/gpu/test_engine.py`. The reference is transformers on the CPU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch

from splash_core.dist.comm import RankComms
from splash_core.dist.launch import Backend
from splash_core.engine.lanes import SwitchTimes
from splash_core.engine.loading import loaded_engine
from splash_core.engine.movers import PullingMover
from splash_core.ids import RankId, RequestId, SeqId
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import Layout
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import SwitchedEvent, TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.scheduling.step import StepPlan
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.distributed.harness import RankPool
from tests.oracle import hf_generate_greedy, hf_logits
from tests.support.gpus import NUM_GPUS, run_to_the_end
from tests.support.group import Group, arena_with
from tests.support.logit_engine import RowKey, loaded, merged_rows
from tests.support.plans import PlanBuilder
from tests.support.rank_configs import rank_config
from tests.support.ranks import ProcessRanks, portable

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

FAMILIES = ["tiny_v2", "tiny_v3"]
TOLERANCE = 1e-4
LENGTHS = (75, 41, 12)
"""Tokens of three sequences that share steps."""
DIRECTIONS = list(permutations(Layout, 2))
WAYS = [(SwitchMode.BLOCKING, False), (SwitchMode.OVERLAPPED, False), (SwitchMode.OVERLAPPED, True)]
"""Modes, and whether ranks pull state from each other's memory or exchange it through NCCL."""
PROMPTS = [[7 + 13 * index + 5 * position for position in range(2 + 4 * index)] for index in range(5)]
NUM_TOKENS = 14


def _tokens(spec: ModelSpec, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, spec.vocab - 1, (length,), generator=generator).tolist()


# --------------------------------------------------------------------------------------- logits


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    assert NUM_GPUS > 0, "torch sees no GPU"
    folder = tmp_path_factory.mktemp("ranks")
    with RankPool(NUM_GPUS, folder, backend=Backend.NCCL, device="cuda") as ranks:
        yield ranks


def logits_on_rank(
    comms: RankComms,
    checkpoint: Path,
    arena_arguments: dict[str, int],
    layout: Layout,
    plans: Sequence[StepPlan],
    pulls: bool = True,
) -> tuple[dict[RowKey, torch.Tensor], int, SwitchTimes]:
    """A rank's rows, the bytes that switches brought it, and the times of the last plan."""
    torch.set_float32_matmul_precision("highest")  # no TF32
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = ArenaMap.build(spec, **arena_arguments)
    comms = comms if pulls else replace(comms, sharing=None)
    engine = loaded(checkpoint, comms, spec, arena, layout, torch.float32)
    engine.reserve_staging(1 << 22)
    assert isinstance(engine.mover, PullingMover) == pulls
    received = sum(engine.step(plan).switch_bytes_received for plan in plans)
    return {key: row.cpu() for key, row in engine.rows.items()}, received, engine.switch_times


def _plans(spec: ModelSpec, builder: PlanBuilder) -> list[StepPlan]:
    """Mixed chunks of odd sizes in every form, then decode steps of all three, then of fewer than T."""
    long, middle, short = (builder.start(_tokens(spec, length)) for length in LENGTHS)
    expanded = AttentionForm.ABSORBED if builder.layout is Layout.DOP else AttentionForm.EXPANDED
    plans = [
        builder.step({long: 13}, form=expanded, cp_storage=CpStorage.PASS_KV),
        builder.step({long: 27, middle: 17}, cp_storage=CpStorage.PASS_KV),
        builder.step({long: 18, middle: 13, short: 9}, form=expanded),
        builder.step({long: 5, middle: 1, short: 1}),
    ]
    for seq, length in ((long, LENGTHS[0]), (middle, LENGTHS[1])):
        while builder.sequences[seq].cached < length:
            others = {short: 1} if builder.sequences[short].cached < LENGTHS[2] else {}
            plans.append(builder.step({seq: 1, **others}))
    return plans


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_the_reference_on_cpu(
    name: str, layout: Layout, pool: RankPool, request: pytest.FixtureRequest
) -> None:
    checkpoint: Path = request.getfixturevalue(name)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=NUM_GPUS, page_size=4, elem_bytes=4, ordinary=40)
    plans = _plans(spec, PlanBuilder(arena, layout))
    answers = pool.run(logits_on_rank, checkpoint, portable(arena, torch.float32), layout, plans)
    rows = merged_rows(answer[0] for answer in answers)
    for seq, length in enumerate(LENGTHS):
        got = torch.stack([rows[SeqId(seq), position] for position in range(length)])
        expected = hf_logits(checkpoint, _tokens(spec, length))
        worst = (got - expected).abs().max(dim=1).values
        beyond = (worst > TOLERANCE).nonzero().flatten().tolist()
        assert not beyond, (
            f"{name} {layout} T={NUM_GPUS}: logits of sequence {seq} differ by up to "
            f"{float(worst.max()):.2e}, beyond {TOLERANCE} at positions {beyond}"
        )


# -------------------------------------------------------------------------------------- switches


@pytest.mark.parametrize(("mode", "pulls"), WAYS)
@pytest.mark.parametrize(("before", "after"), DIRECTIONS)
def test_a_switch_brings_the_bytes_of_its_manifest_and_tells_its_times(
    before: Layout, after: Layout, mode: SwitchMode, pulls: bool, pool: RankPool, tiny_v3: Path
) -> None:
    spec = ModelSpec.from_checkpoint(tiny_v3)
    arena = arena_with(spec, num_ranks=NUM_GPUS, page_size=4, elem_bytes=4, ordinary=40)
    builder = PlanBuilder(arena, before)
    seqs = [builder.start(_tokens(spec, length)) for length in LENGTHS]
    prompts = {seq: length - 1 for seq, length in zip(seqs, LENGTHS, strict=True)}
    plans = [builder.step(prompts), builder.switch(after, dict.fromkeys(seqs, 1), mode=mode)]
    manifest = plans[-1].manifest
    assert manifest is not None
    answers = pool.run(logits_on_rank, tiny_v3, portable(arena, torch.float32), before, plans, pulls)
    for rank, (_, received, times) in enumerate(answers):
        per_layer = manifest.weight_bytes_per_layer + manifest.kv_bytes_per_layer[rank]
        assert received == spec.layers * per_layer, f"rank {rank}"
        moves = bool(manifest.weight_bytes_per_layer or manifest.layer_chunks)
        assert len(times.layer_transfer_s) == (spec.layers if moves else 0)
        assert all(seconds > 0 for seconds in times.layer_transfer_s), times
        assert 0 <= times.first_wait_s <= times.wait_s < 5, times
    rows = merged_rows(answer[0] for answer in answers)
    for seq, length in enumerate(LENGTHS):
        difference = rows[SeqId(seq), length - 1] - hf_logits(tiny_v3, _tokens(spec, length))[-1]
        assert difference.abs().max() <= TOLERANCE, f"sequence {seq} after the switch"


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


def _generate(
    group: Group, layout: Layout, turn: tuple[Layout, SwitchMode] | None = None
) -> tuple[dict[str, list[int]], list[SwitchedEvent]]:
    """Greedy tokens of all prompts, with a switch when some decode and others are still being read."""
    config = SchedulerConfig(
        role=Role.COMBINED,
        layouts=tuple(Layout),
        chunk_tokens=16,
        # A few pages or the weights of a layer at a time: what is copied ahead takes some steps.
        precopy_bytes_per_step=4 * group.arena.slot_bytes,
    )
    group.reset(layout, config)
    for index, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
        group.scheduler.add(RequestId(str(index)), prompt, sampling)
    tokens: dict[str, list[int]] = {}
    switched: list[SwitchedEvent] = []
    steps = 0
    while group.scheduler.count():
        if turn is not None and steps == 3:
            assert group.scheduler.request_switch(*turn) is None, "the switch is scheduled"
        for event in group.step():
            if isinstance(event, TokenEvent):
                tokens.setdefault(event.request_id, []).append(event.token)
            elif isinstance(event, SwitchedEvent):
                switched.append(event)
        steps += 1
    return tokens, switched


@pytest.mark.parametrize("mode", list(SwitchMode))
@pytest.mark.parametrize(("before", "after"), DIRECTIONS)
def test_greedy_tokens_over_a_switch_equal_those_without(
    group: Group, before: Layout, after: Layout, mode: SwitchMode
) -> None:
    expected, none = _generate(group, before)
    tokens, switched = _generate(group, before, (after, mode))
    assert none == []
    assert [(event.layout_from, event.layout_to, event.mode) for event in switched] == [(before, after, mode)]
    for name, row in expected.items():
        assert len(row) == NUM_TOKENS
        differs = [at for at, (a, b) in enumerate(zip(tokens[name], row, strict=True)) if a != b]
        assert not differs, (
            f"{before} → {after} {mode}: request {name} differs from token {differs[0]} on: "
            f"{tokens[name]}, unswitched {row}"
        )


def test_pages_in_borrowed_slots_survive_a_switch_that_needs_them(tiny_v3: Path, tmp_path: Path) -> None:
    """Requests fill the ordinary slots and spill; most end early, the others are moved away in time."""
    spec = ModelSpec.from_checkpoint(tiny_v3)
    arena = arena_with(spec, num_ranks=NUM_GPUS, page_size=1, elem_bytes=4, ordinary=24)
    if NUM_GPUS == 1:
        assert not arena.borrowed, "a rank alone has no shards of others, under which pages could lie"
        return
    assert len(arena.borrowed) >= 4, "too few slots are borrowed: the test proves nothing"
    ranks = ProcessRanks(tiny_v3, arena, tmp_path, dtype=torch.float32, device="cuda")
    group = Group(ranks)
    prompt = [5, 9, 200, 31, 77, 4, 18]
    group.reset(Layout.DOP, SchedulerConfig(role=Role.COMBINED, chunk_tokens=64))
    # Three requests a rank; the last ones live on, so that their pages are those in borrowed slots.
    for index in range(3 * NUM_GPUS):
        survives = index >= 2 * NUM_GPUS
        sampling = SamplingParams(temperature=0.0, max_tokens=12 if survives else 3)
        group.scheduler.add(RequestId(str(index)), [*prompt, index], sampling)
    tokens: dict[str, list[int]] = {}
    asked = False
    while group.scheduler.count():
        if not asked and group.scheduler.count() <= NUM_GPUS:
            used = [pool.used_borrowed for pool in group.table.pools]
            assert any(used), f"no page of a survivor is in a borrowed slot: the test proves nothing ({used})"
            assert group.scheduler.request_switch(Layout.DP) is None
            asked = True
        for event in group.step():
            if isinstance(event, TokenEvent):
                tokens.setdefault(event.request_id, []).append(event.token)
    assert group.seen["evacuations"] > 0, group.seen
    for index in range(2 * NUM_GPUS, 3 * NUM_GPUS):
        assert tokens[str(index)] == hf_generate_greedy(tiny_v3, [*prompt, index], 12), f"request {index}"
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
