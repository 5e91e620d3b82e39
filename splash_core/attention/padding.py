"""Batches of one shape: decode rows padded to the same number on every rank (docs/decisions, 13).

A CUDA graph replays fixed shapes, so a step of decode rows is brought to a bucket: every rank carries
`bucket` home rows, of which the last ones may be padding. A padding row belongs to no sequence, writes no
KV, attends to nothing, and its result is never looked at; it repeats some real row's token and position, so
that every number in it is finite.

Legend: N rows of the step, T ranks.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from splash_core.attention.batch import PADDING, Batch
from splash_core.attention.context import RankContext
from splash_core.layout.forms import AttentionForm, CpStorage


def bucket_of(counts: Sequence[int], buckets: Sequence[int]) -> int | None:
    """The smallest bucket that holds every rank's home rows; None if none does.

    Args:
        counts: home rows of each rank, known alike to all ranks.
        buckets: ascending.
    """
    index = bisect_left(buckets, max(counts))
    return buckets[index] if index < len(buckets) else None


def pad_batch(batch: Batch, bucket: int) -> Batch:
    """The same rows in the same order, each rank's followed by padding up to `bucket` rows.

    Args:
        batch: at least one row, at most `bucket` at home on any rank.
        bucket: home rows per rank afterwards.
    """
    assert 0 < max(batch.counts) <= bucket
    source_N = np.zeros(bucket * batch.num_ranks, dtype=np.int64)
    real_N = np.zeros(bucket * batch.num_ranks, dtype=np.bool_)
    for rank, count in enumerate(batch.counts):
        rows = batch.rows_of(rank)
        source_N[rank * bucket : rank * bucket + count] = np.arange(rows.start, rows.stop)
        real_N[rank * bucket : rank * bucket + count] = True
    return replace(
        batch,
        counts=(bucket,) * batch.num_ranks,
        padded=True,
        sequence_N=np.where(real_N, batch.sequence_N[source_N], PADDING),
        position_N=batch.position_N[source_N],
        token_N=batch.token_N[source_N],
        drawn_N=real_N & batch.drawn_N[source_N],
    )


def blank_batch(ctx: RankContext, bucket: int) -> Batch:
    """A batch of padding only, `bucket` rows at home on each rank: what a step is recorded with."""
    rows = bucket * ctx.num_ranks
    return Batch(
        rank=ctx.rank,
        num_ranks=ctx.num_ranks,
        page_size=ctx.arena.map.page_size,
        form=AttentionForm.ABSORBED,
        cp_storage=CpStorage.PASS_Q,
        sequences=(),
        counts=(bucket,) * ctx.num_ranks,
        padded=True,
        sequence_N=np.full(rows, PADDING, dtype=np.int64),
        position_N=np.zeros(rows, dtype=np.int64),
        token_N=np.zeros(rows, dtype=np.int64),
        drawn_N=np.zeros(rows, dtype=np.bool_),
    )
