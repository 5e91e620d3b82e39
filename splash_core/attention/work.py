"""Which queries on a rank attend to which keys: indices made once per step, used in every layer.

Rows of one sequence form a group. Sequences with a single row (decode) of similar length are padded
into one group, so that a layer costs a handful of kernel launches and not one per sequence.

Legend: N query rows on this rank, B sequences of a decode group, M pages, K keys, P page size.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from splash_core.attention.backend import StagedRows
from splash_core.attention.batch import PADDING, Batch, BatchSequence, IntArray, rows_by_sequence
from splash_core.kernels.base import Kernels
from splash_core.layout.ownership import NO_SLOT

_Single = tuple[int, IntArray, int]
"""A row that is its sequence's only one: its number among the rank's rows, its slots, its keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKeys:
    """Keys of one sequence in this rank's pages."""

    slots_M: Tensor
    positions_K: Tensor
    """Position of each key; K counts written keys only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedKeys:
    """Keys of one sequence among rows gathered for this layer (CP pass-KV)."""

    rows_K: Tensor
    positions_K: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkGroup:
    """Several rows of one sequence: prefill."""

    rows_N: Tensor
    """Indices into the rank's query rows."""
    positions_N: Tensor
    keys: PagedKeys | StagedKeys
    causal_from_zero: bool
    """Rows and keys are both positions 0 … N-1, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """One row each of B sequences; every local key is visible to its row."""

    rows_B: Tensor
    slots_BM: Tensor
    """Short tables are padded with their own last slot: masked, but finite."""
    visible_BK: Tensor
    """Which of the M·P keys are written; the others are padding or the tail of the last page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """All groups of a rank in a step; together they cover each query row once."""

    num_rows: int
    chunks: tuple[ChunkGroup, ...]
    decodes: tuple[DecodeRows, ...]


def paged_work(batch: Batch, rows_N: IntArray, kernels: Kernels) -> AttentionWork:
    """Work over the pages on this rank.

    Args:
        batch: the step.
        rows_N: row numbers (in the batch) of the rank's query rows, in their order.
        kernels: whose `upload` places indices.
    """
    chunks: list[ChunkGroup] = []
    singles: dict[int, list[_Single]] = defaultdict(list)
    singles[0].extend(_padding(batch, rows_N))
    for sequence, local_N in rows_by_sequence(batch, rows_N):
        slots_M, positions_K = local_keys(batch, sequence, batch.rank)
        if sequence.count == 1:
            # Buckets of lengths within a factor of two bound the padding.
            singles[len(slots_M).bit_length()].append((int(local_N[0]), slots_M, len(positions_K)))
            continue
        positions_N = batch.position_N[rows_N[local_N]]
        chunks.append(
            ChunkGroup(
                rows_N=kernels.upload(local_N),
                positions_N=kernels.upload(positions_N),
                keys=PagedKeys(slots_M=kernels.upload(slots_M), positions_K=kernels.upload(positions_K)),
                causal_from_zero=_is_arange(positions_N) and np.array_equal(positions_N, positions_K),
            )
        )
    decodes = tuple(
        _decode_group(members, batch.page_size, kernels) for _, members in sorted(singles.items()) if members
    )
    return AttentionWork(num_rows=len(rows_N), chunks=tuple(chunks), decodes=decodes)


def decode_work(batch: Batch, rows_N: IntArray, kernels: Kernels, *, max_pages: int) -> AttentionWork:
    """Work of decode rows and padding as one group whose shapes do not depend on the batch's histories.

    Args:
        batch: the step; every sequence has one row.
        rows_N: as for `paged_work`.
        kernels: whose `upload` places indices.
        max_pages: pages that a row's table has room for.
    """
    singles = _padding(batch, rows_N)
    for sequence, local_N in rows_by_sequence(batch, rows_N):
        slots_M, positions_K = local_keys(batch, sequence, batch.rank)
        singles.extend((int(row), slots_M, len(positions_K)) for row in local_N)
    group = _decode_group(sorted(singles, key=lambda single: single[0]), batch.page_size, kernels, max_pages)
    return AttentionWork(num_rows=len(rows_N), chunks=(), decodes=(group,))


def staged_work(batch: Batch, rows_N: IntArray, keys: StagedRows, kernels: Kernels) -> AttentionWork:
    """Work over gathered keys: `keys[sequence] = (rows of the staging tensor, their positions)`."""
    chunks = []
    for sequence, local_N in rows_by_sequence(batch, rows_N):
        staged_K, positions_K = keys[batch.sequences.index(sequence)]
        positions_N = batch.position_N[rows_N[local_N]]
        chunks.append(
            ChunkGroup(
                rows_N=kernels.upload(local_N),
                positions_N=kernels.upload(positions_N),
                keys=StagedKeys(rows_K=kernels.upload(staged_K), positions_K=kernels.upload(positions_K)),
                causal_from_zero=_is_arange(positions_N) and np.array_equal(positions_N, positions_K),
            )
        )
    padding = _padding(batch, rows_N)
    decodes = (_decode_group(padding, batch.page_size, kernels),) if padding else ()
    return AttentionWork(num_rows=len(rows_N), chunks=tuple(chunks), decodes=decodes)


def local_keys(batch: Batch, sequence: BatchSequence, rank: int) -> tuple[IntArray, IntArray]:
    """Slots on `rank` of a sequence's pages, and the positions of the keys in them after this step."""
    pages = -(-sequence.end // batch.page_size)
    slots = sequence.table_PT[:pages, rank]
    held = np.nonzero(slots != NO_SLOT)[0]
    positions = (held[:, None] * batch.page_size + np.arange(batch.page_size)).reshape(-1)
    return slots[held], positions[positions < sequence.end]


def _padding(batch: Batch, rows_N: IntArray) -> list[_Single]:
    """Padding rows as decode rows without keys: they give output 0 and lse -inf."""
    no_slots = np.empty(0, dtype=np.int64)
    return [(int(row), no_slots, 0) for row in np.nonzero(batch.sequence_N[rows_N] == PADDING)[0]]


def _decode_group(members: list[_Single], page_size: int, kernels: Kernels, max_pages: int = 1) -> DecodeRows:
    most = max(max(len(slots) for _, slots, _ in members), max_pages)
    slots_BM = np.zeros((len(members), most), dtype=np.int64)
    for index, (_, slots, _) in enumerate(members):
        if len(slots):
            slots_BM[index] = slots[-1]
            slots_BM[index, : len(slots)] = slots
    lengths_B = np.asarray([length for _, _, length in members], dtype=np.int64)
    visible_BK = np.arange(most * page_size) < lengths_B[:, None]
    return DecodeRows(
        rows_B=kernels.upload(np.asarray([row for row, _, _ in members], dtype=np.int64)),
        slots_BM=kernels.upload(slots_BM),
        visible_BK=kernels.upload(visible_BK),
    )


def _is_arange(positions_N: IntArray) -> bool:
    return bool(np.array_equal(positions_N, np.arange(len(positions_N))))
