"""What an engine's ranks must compute in every layout and over every switch, whatever the ranks run on."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import torch

from splash_core.dist.comm import RankComms
from splash_core.engine.lanes import SwitchTimes
from splash_core.engine.movers import PullingMover
from splash_core.ids import RequestId, SeqId
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import SwitchedEvent, TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.scheduling.step import StepPlan
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from splash_core.units import STAGING_BYTES
from tests.oracle import hf_generate_greedy, hf_logits
from tests.support.group import Group
from tests.support.logit_engine import RowKey, loaded
from tests.support.plans import PlanBuilder

FAMILIES = ["tiny_v2", "tiny_v3"]
TOLERANCE = 1e-4
LENGTHS = (75, 41, 12)
"""Tokens of three sequences that share steps."""
DIRECTIONS = list(permutations(Layout, 2))
STANDARD_DIRECTIONS = list(permutations(STANDARD_LAYOUTS, 2))
PROMPTS = [[7 + 13 * index + 5 * position for position in range(2 + 4 * index)] for index in range(5)]
NUM_TOKENS = 14
_SPILLING_PROMPT = [5, 9, 200, 31, 77, 4, 18]
_SHORT, _LONG = 3, 12
"""Tokens of requests that end early, and of those that live on."""


def tokens_of(spec: ModelSpec, length: int) -> list[int]:
    """A sequence of so many tokens, always the same."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, spec.vocab - 1, (length,), generator=generator).tolist()


# --------------------------------------------------------------------------------------- logits


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
    # A rank alone has nobody to pull from.
    assert isinstance(engine.mover, PullingMover) == (pulls and comms.compute.size > 1)
    received = sum(engine.step(plan).switch_bytes_received for plan in plans)
    return {key: row.cpu() for key, row in engine.rows.items()}, received, engine.switch_times


def mixed_plans(
    spec: ModelSpec, builder: PlanBuilder, *, second: int = 27, middle_third: int = 13
) -> list[StepPlan]:
    """Mixed chunks of odd sizes in every form, then decode steps of all three, then of fewer than T.

    Args:
        spec: the model.
        builder: of a group in the layout to try.
        second: rows of the longest sequence in the second step.
        middle_third: rows of the middle one in the third.
    """
    long, middle, short = (builder.start(tokens_of(spec, length)) for length in LENGTHS)
    expanded = AttentionForm.ABSORBED if builder.layout is Layout.DOP else AttentionForm.EXPANDED
    plans = [
        builder.step({long: 13}, form=expanded, cp_storage=CpStorage.PASS_KV),
        builder.step({long: second, middle: 17}, cp_storage=CpStorage.PASS_KV),
        builder.step({long: 18, middle: middle_third, short: 9}, form=expanded),
        builder.step({long: 5, middle: 1, short: 1}),
    ]
    for seq, length in ((long, LENGTHS[0]), (middle, LENGTHS[1])):
        while builder.sequences[seq].cached < length:
            others = {short: 1} if builder.sequences[short].cached < LENGTHS[2] else {}
            plans.append(builder.step({seq: 1, **others}))
    return plans


def check_mixed(checkpoint: Path, rows: dict[RowKey, torch.Tensor], what: str) -> None:
    """All rows of `mixed_plans` are those of the reference on the CPU."""
    spec = ModelSpec.from_checkpoint(checkpoint)
    for seq, length in enumerate(LENGTHS):
        got = torch.stack([rows[SeqId(seq), position] for position in range(length)])
        expected = hf_logits(checkpoint, tokens_of(spec, length))
        worst = (got - expected).abs().max(dim=1).values
        beyond = (worst > TOLERANCE).nonzero().flatten().tolist()
        assert not beyond, (
            f"{what}: logits of sequence {seq} differ by up to "
            f"{float(worst.max()):.2e}, beyond {TOLERANCE} at positions {beyond}"
        )


def switching_plans(
    spec: ModelSpec, arena: ArenaMap, before: Layout, after: Layout, mode: SwitchMode
) -> list[StepPlan]:
    """All tokens but the last of each sequence, then a switch with the last ones."""
    builder = PlanBuilder(arena, before)
    seqs = [builder.start(tokens_of(spec, length)) for length in LENGTHS]
    prompts = {seq: length - 1 for seq, length in zip(seqs, LENGTHS, strict=True)}
    return [builder.step(prompts), builder.switch(after, dict.fromkeys(seqs, 1), mode=mode)]


def check_switched_rows(
    checkpoint: Path, plans: Sequence[StepPlan], rows: dict[RowKey, torch.Tensor], received: Sequence[int]
) -> None:
    """`switching_plans` brought each rank the manifest's bytes, and rows are the reference's afterwards."""
    spec, manifest = ModelSpec.from_checkpoint(checkpoint), plans[-1].manifest
    assert manifest is not None
    for rank, num_bytes in enumerate(received):
        per_layer = manifest.weight_bytes_per_layer + manifest.kv_bytes_per_layer[rank]
        assert num_bytes == spec.layers * per_layer, f"rank {rank}"
    for seq, length in enumerate(LENGTHS):
        difference = rows[SeqId(seq), length - 1] - hf_logits(checkpoint, tokens_of(spec, length))[-1]
        assert difference.abs().max() <= TOLERANCE, f"sequence {seq} after the switch"


# --------------------------------------------------------------------------------------- tokens


def generate(
    group: Group,
    layout: Layout,
    turn: tuple[Layout, SwitchMode] | None = None,
    *,
    staging_bytes: int = STAGING_BYTES,
) -> tuple[dict[str, list[int]], list[SwitchedEvent]]:
    """Greedy tokens of all prompts, with a switch when some decode and others are still being read."""
    config = SchedulerConfig(
        role=Role.COMBINED,
        layouts=tuple(Layout),
        chunk_tokens=16,
        staging_bytes=staging_bytes,
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


def check_tokens_over_a_switch(
    group: Group,
    expected: dict[str, list[int]],
    before: Layout,
    after: Layout,
    mode: SwitchMode,
    *,
    staging_bytes: int = STAGING_BYTES,
) -> None:
    """A run with one switch gives the tokens of a run without."""
    tokens, switched = generate(group, before, (after, mode), staging_bytes=staging_bytes)
    assert [(event.layout_from, event.layout_to, event.mode) for event in switched] == [(before, after, mode)]
    for name, row in expected.items():
        assert len(row) == NUM_TOKENS
        differs = [at for at, (a, b) in enumerate(zip(tokens[name], row, strict=True)) if a != b]
        assert not differs, (
            f"{before} → {after} {mode}: request {name} differs from token {differs[0]} on: "
            f"{tokens[name]}, unswitched {row}"
        )


def check_spilled_pages(group: Group, checkpoint: Path, *, staging_bytes: int = STAGING_BYTES) -> None:
    """Requests fill the ordinary slots and spill; most end early, the others are moved away in time."""
    num_ranks = group.arena.num_ranks
    assert len(group.arena.borrowed) >= 4, "too few slots are borrowed: the test proves nothing"
    config = SchedulerConfig(role=Role.COMBINED, chunk_tokens=64, staging_bytes=staging_bytes)
    group.reset(Layout.DOP, config)
    # Three requests a rank; the last ones live on, so that their pages are those in borrowed slots.
    survivors = range(2 * num_ranks, 3 * num_ranks)
    for index in range(3 * num_ranks):
        sampling = SamplingParams(temperature=0.0, max_tokens=_LONG if index in survivors else _SHORT)
        group.scheduler.add(RequestId(str(index)), [*_SPILLING_PROMPT, index], sampling)
    tokens: dict[str, list[int]] = {}
    asked = False
    evacuations = group.seen["evacuations"]
    while group.scheduler.count():
        if not asked and group.scheduler.count() <= num_ranks:
            used = [pool.used_borrowed for pool in group.table.pools]
            assert any(used), f"no page of a survivor is in a borrowed slot: the test proves nothing ({used})"
            assert group.scheduler.request_switch(Layout.DP) is None
            asked = True
        for event in group.step():
            if isinstance(event, TokenEvent):
                tokens.setdefault(event.request_id, []).append(event.token)
    assert group.seen["evacuations"] > evacuations, group.seen
    for index in survivors:
        expected = hf_generate_greedy(checkpoint, [*_SPILLING_PROMPT, index], _LONG)
        assert tokens[str(index)] == expected, f"request {index}"
