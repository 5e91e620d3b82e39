"""Batches padded for CUDA graphs: their shapes follow from the padding alone, and padding is inert."""

import numpy as np
import pytest
import torch

from splash_core.attention.batch import PADDING, Batch, build_batch
from splash_core.attention.padding import bucket_of, pad_batch
from splash_core.attention.work import paged_work
from splash_core.ids import Epoch, RankId, SeqId, StepId
from splash_core.kernels.reference import merge_by_lse
from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import NO_SLOT
from splash_core.scheduling.step import SequenceStep, StepPlan

CPU = torch.device("cpu")
RANKS, PAGE = 2, 4
STARTS = (2, 7, 12)


def plan(layout: Layout, count: int = 1) -> StepPlan:
    sequences = tuple(
        SequenceStep(seq=SeqId(seq), start=start, tokens=(9,) * count, sample=True)
        for seq, start in enumerate(STARTS)
    )
    return StepPlan(step=StepId(1), epoch=Epoch(0), layout=layout, sequences=sequences)


def tables(layout: Layout) -> dict[SeqId, np.ndarray]:
    """Everything on both ranks (TP), on one (DP, DOP), or pages in turn (CP)."""
    made = {}
    for seq, start in enumerate(STARTS):
        pages = np.arange(start // PAGE + 1)
        table = np.repeat((20 * seq + pages)[:, None], RANKS, axis=1)
        if layout is not Layout.TP:
            owner = (pages + seq if layout is Layout.CP else np.full(len(pages), seq)) % RANKS
            table[np.arange(RANKS) != owner[:, None]] = NO_SLOT
        made[SeqId(seq)] = table
    return made


def batch(layout: Layout, rank: int, rows_per_rank: int | None, count: int = 1) -> Batch:
    built = build_batch(
        plan(layout, count), tables(layout), rank=RankId(rank), num_ranks=RANKS, page_size=PAGE
    )
    return built if rows_per_rank is None else pad_batch(built, rows_per_rank)


@pytest.mark.parametrize("layout", Layout)
def test_rows_keep_their_places_and_padding_has_none(layout: Layout) -> None:
    plain, padded = batch(layout, 1, None), batch(layout, 1, 4)
    assert (plain.padded, padded.padded) == (False, True)
    assert padded.counts == (4, 4)
    real_N = padded.sequence_N != PADDING
    for rank in range(RANKS):
        rows, padded_rows = plain.rows_of(rank), padded.rows_of(rank)
        inside = slice(padded_rows.start, padded_rows.start + plain.counts[rank])
        assert padded.sequence_N[inside].tolist() == plain.sequence_N[rows].tolist()
        assert padded.position_N[inside].tolist() == plain.position_N[rows].tolist()
        assert padded.slots_on(rank)[real_N].tolist() == plain.slots_on(rank).tolist()
        assert (padded.slots_on(rank)[~real_N] == NO_SLOT).all()
    assert padded.token_N[real_N].tolist() == [9] * len(STARTS)


@pytest.mark.parametrize("layout", [Layout.DP, Layout.CP, Layout.DOP])
def test_routes_follow_from_the_padding_alone(layout: Layout) -> None:
    padded = batch(layout, 0, 4)
    assert padded.holders_NT().all(), "every rank is asked about every row"
    assert padded.writers_NT().tolist() == [[True, False]] * 4 + [[False, True]] * 4
    plain = batch(layout, 0, None)
    held = [[(tables(layout)[SeqId(i)] != NO_SLOT)[:, rank].any() for rank in range(RANKS)] for i in range(3)]
    assert plain.holders_NT().tolist() == [held[index] for index in plain.sequence_N]


def test_padding_rows_attend_to_nothing() -> None:
    padded = batch(Layout.CP, 0, 4)
    work = paged_work(padded, np.arange(8), TorchKernels(CPU))
    visible = {
        int(row): int(seen)
        for group in work.decodes
        for row, seen in zip(group.rows_B, group.visible_BK.sum(dim=1), strict=True)
    }
    assert sorted(visible) == list(range(8))
    assert all(visible[row] == 0 for row in range(8) if padded.sequence_N[row] == PADDING)
    assert sum(visible.values()) > 0


def test_the_smallest_bucket_that_holds_every_ranks_rows() -> None:
    assert bucket_of((3, 0), (1, 2, 4)) == 4
    assert bucket_of((1, 1), (1, 2, 4)) == 1
    assert bucket_of((4, 5), (1, 2, 4)) is None


def test_merging_parts_that_saw_nothing_gives_zero() -> None:
    lse_TNH = torch.tensor([[[0.0], [float("-inf")]], [[float("-inf")], [float("-inf")]]])
    out_TNHv = torch.tensor([[[[3.0]], [[0.0]]], [[[0.0]], [[0.0]]]])
    assert merge_by_lse(out_TNHv, lse_TNH).flatten().tolist() == [3.0, 0.0]
