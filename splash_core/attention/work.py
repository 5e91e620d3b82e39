"""Which queries on a rank attend to which keys: indices made once per step, used in every layer.

Rows of one sequence form a group. Sequences with a single row (decode) of similar length are padded
into one group, so that a layer costs a handful of kernel launches and not one per sequence.

Legend: N query rows on this rank, B sequences of a decode group, M pages, K keys, P page size.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splash_core.attention.batch import Batch, BatchSequence, IntArray
from splash_core.layout.ownership import NO_SLOT


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
class DecodeGroup:
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
    decodes: tuple[DecodeGroup, ...]


def paged_work(batch: Batch, rows_N: IntArray, device: torch.device) -> AttentionWork:
    """Work over the pages on this rank.

    Args:
        batch: the step.
        rows_N: row numbers (in the batch) of the rank's query rows, in their order.
        device: where indices live.
    """
    chunks: list[ChunkGroup] = []
    singles: dict[int, list[tuple[int, IntArray, int]]] = defaultdict(list)
    for sequence, local_N in _by_sequence(batch, rows_N):
        slots_M, positions_K = local_keys(batch, sequence, batch.rank)
        if sequence.count == 1:
            # Buckets of lengths within a factor of two bound the padding.
            singles[len(slots_M).bit_length()].append((int(local_N[0]), slots_M, len(positions_K)))
            continue
        positions_N = batch.position_N[rows_N[local_N]]
        chunks.append(
            ChunkGroup(
                rows_N=_tensor(local_N, device),
                positions_N=_tensor(positions_N, device),
                keys=PagedKeys(slots_M=_tensor(slots_M, device), positions_K=_tensor(positions_K, device)),
                causal_from_zero=_is_arange(positions_N) and np.array_equal(positions_N, positions_K),
            )
        )
    decodes = tuple(_decode_group(members, batch.page_size, device) for _, members in sorted(singles.items()))
    return AttentionWork(num_rows=len(rows_N), chunks=tuple(chunks), decodes=decodes)


def staged_work(
    batch: Batch, rows_N: IntArray, keys: dict[int, tuple[IntArray, IntArray]], device: torch.device
) -> AttentionWork:
    """Work over gathered keys: `keys[sequence] = (rows of the staging tensor, their positions)`."""
    chunks = []
    for sequence, local_N in _by_sequence(batch, rows_N):
        staged_K, positions_K = keys[batch.sequences.index(sequence)]
        positions_N = batch.position_N[rows_N[local_N]]
        chunks.append(
            ChunkGroup(
                rows_N=_tensor(local_N, device),
                positions_N=_tensor(positions_N, device),
                keys=StagedKeys(rows_K=_tensor(staged_K, device), positions_K=_tensor(positions_K, device)),
                causal_from_zero=_is_arange(positions_N) and np.array_equal(positions_N, positions_K),
            )
        )
    return AttentionWork(num_rows=len(rows_N), chunks=tuple(chunks), decodes=())


def local_keys(batch: Batch, sequence: BatchSequence, rank: int) -> tuple[IntArray, IntArray]:
    """Slots on `rank` of a sequence's pages, and the positions of the keys in them after this step."""
    pages = -(-sequence.end // batch.page_size)
    slots = sequence.table_PT[:pages, rank]
    held = np.nonzero(slots != NO_SLOT)[0]
    positions = (held[:, None] * batch.page_size + np.arange(batch.page_size)).reshape(-1)
    return slots[held], positions[positions < sequence.end]


def _by_sequence(batch: Batch, rows_N: IntArray) -> list[tuple[BatchSequence, IntArray]]:
    owners = batch.sequence_N[rows_N]
    return [(batch.sequences[index], np.nonzero(owners == index)[0]) for index in np.unique(owners)]


def _decode_group(
    members: list[tuple[int, IntArray, int]], page_size: int, device: torch.device
) -> DecodeGroup:
    most = max(max(len(slots) for _, slots, _ in members), 1)
    slots_BM = np.zeros((len(members), most), dtype=np.int64)
    for index, (_, slots, _) in enumerate(members):
        if len(slots):
            slots_BM[index] = slots[-1]
            slots_BM[index, : len(slots)] = slots
    lengths_B = np.asarray([length for _, _, length in members], dtype=np.int64)
    visible_BK = np.arange(most * page_size) < lengths_B[:, None]
    return DecodeGroup(
        rows_B=_tensor(np.asarray([row for row, _, _ in members], dtype=np.int64), device),
        slots_BM=_tensor(slots_BM, device),
        visible_BK=torch.from_numpy(visible_BK).to(device),
    )


def _is_arange(positions_N: IntArray) -> bool:
    return bool(np.array_equal(positions_N, np.arange(len(positions_N))))


def _tensor(values: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
