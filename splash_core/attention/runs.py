"""A rank's attention work as runs, the form in which attention libraries take it.

A run is some consecutive query rows of one sequence and the keys that they see: row i of a run with `count`
rows sees the first `num_keys - (count - 1 - i)` keys ("causal, aligned at the end"). Where a rank holds all
pages of a sequence, a run is a range of positions; on a stripe, rows between two pages held here see the
same keys, so each is a run of its own. A row without keys (padding too) is a run of its own.

Legend: N query rows on this rank, R runs, M pages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from splash_core.attention.backend import StagedRows
from splash_core.attention.batch import Batch, rows_by_sequence
from splash_core.kernels.base import IntArray
from splash_core.layout.ownership import NO_SLOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """All runs of a rank in a step, in the order of its rows; they cover each row once."""

    num_rows: int
    page_size: int
    first_R: IntArray
    count_R: IntArray
    num_keys_R: IntArray
    page_R: IntArray
    """Where in `slots_M` a run's pages begin; runs of one sequence share them."""
    slots_M: IntArray

    @property
    def are_single_rows(self) -> bool:
        """True if every run has one row: a decode step, or one on stripes."""
        return bool((self.count_R == 1).all())

    def select(self, wanted_R: np.ndarray) -> "Runs":
        """Only the wanted runs, their rows renumbered from 0 without gaps."""
        count_R = self.count_R[wanted_R]
        return replace(
            self,
            num_rows=int(count_R.sum()),
            first_R=np.cumsum(count_R) - count_R,
            count_R=count_R,
            num_keys_R=self.num_keys_R[wanted_R],
            page_R=self.page_R[wanted_R],
        )

    def rows_of(self, wanted_R: np.ndarray) -> IntArray:
        """Row numbers of the wanted runs, in order."""
        starts, counts = self.first_R[wanted_R], self.count_R[wanted_R]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(starts, counts) + offsets

    def as_single_rows(self) -> "Runs":
        """The same work with one row per run."""
        run_N = np.repeat(np.arange(len(self.count_R)), self.count_R)
        first_N = np.arange(self.num_rows)
        later_N = self.first_R[run_N] + self.count_R[run_N] - 1 - first_N
        return replace(
            self,
            first_R=first_N,
            count_R=np.ones_like(first_N),
            num_keys_R=self.num_keys_R[run_N] - later_N,
            page_R=self.page_R[run_N],
        )

    def pieces(self, max_rows: int) -> Iterator[tuple[slice, "Runs"]]:
        """Cut into pieces of at most `max_rows` consecutive rows, each with rows from 0."""
        for start in range(0, self.num_rows, max_rows):
            end = min(start + max_rows, self.num_rows)
            end_R = self.first_R + self.count_R
            inside_R = (self.first_R < end) & (end_R > start)
            first_R = np.maximum(self.first_R, start)[inside_R]
            cut_R = np.minimum(end_R, end)[inside_R]
            yield (
                slice(start, end),
                replace(
                    self,
                    num_rows=end - start,
                    first_R=first_R - start,
                    count_R=cut_R - first_R,
                    num_keys_R=self.num_keys_R[inside_R] - (end_R[inside_R] - cut_R),
                    page_R=self.page_R[inside_R],
                ),
            )


def paged_runs(batch: Batch, rows_N: IntArray) -> Runs:
    """Over the pages on this rank; `rows_N`: the rank's query rows (numbers in the batch), in their order."""
    parts = []
    for sequence, local_N in rows_by_sequence(batch, rows_N):
        slots_M = sequence.table_PT[: -(-sequence.end // batch.page_size), batch.rank]
        position_N = batch.position_N[rows_N[local_N]]
        if (slots_M != NO_SLOT).all():
            parts.append((local_N, position_N + 1, slots_M))
            continue
        held_M = np.nonzero(slots_M != NO_SLOT)[0]
        parts.append((local_N, _visible_keys(held_M, position_N, batch.page_size), slots_M[held_M]))
    return _join(len(rows_N), parts, page_size=batch.page_size)


def staged_runs(batch: Batch, rows_N: IntArray, keys: StagedRows) -> Runs:
    """Over gathered rows: a "page" is one row of the staging tensor."""
    parts = []
    for sequence, local_N in rows_by_sequence(batch, rows_N):
        staged_K, position_K = keys[batch.sequences.index(sequence)]
        position_N = batch.position_N[rows_N[local_N]]
        parts.append((local_N, np.searchsorted(position_K, position_N, side="right"), staged_K))
    return _join(len(rows_N), parts, page_size=1)


def _visible_keys(held_M: IntArray, position_N: IntArray, page_size: int) -> IntArray:
    """How many keys on this rank each row sees: all of earlier pages, and its own page's up to itself."""
    if len(held_M) == 0:
        return np.zeros_like(position_N)
    page_N, offset_N = position_N // page_size, position_N % page_size
    before_N = np.searchsorted(held_M, page_N)
    is_held_N = held_M[np.minimum(before_N, len(held_M) - 1)] == page_N
    return before_N * page_size + np.where(is_held_N, offset_N + 1, 0)


def _join(num_rows: int, parts: list[tuple[IntArray, IntArray, IntArray]], *, page_size: int) -> Runs:
    """Runs from each sequence's `(row numbers, visible keys of each row, slots)`."""
    visible_N = np.zeros(num_rows, dtype=np.int64)
    # A padding row is nobody's neighbour and has no pages.
    sequence_N = np.full(num_rows, -1, dtype=np.int64)
    page_of = np.zeros(len(parts) + 1, dtype=np.int64)
    for index, (local_N, seen_N, slots_M) in enumerate(parts):
        visible_N[local_N] = seen_N
        sequence_N[local_N] = index
        page_of[index + 1] = page_of[index] + len(slots_M)
    continues_N = (
        (sequence_N[1:] == sequence_N[:-1])
        & (sequence_N[1:] >= 0)
        & (visible_N[1:] == visible_N[:-1] + 1)
        & (visible_N[:-1] > 0)
    )
    first_R = np.concatenate([[0], np.nonzero(~continues_N)[0] + 1]) if num_rows else np.empty(0, np.int64)
    last_R = np.append(first_R[1:], num_rows) - 1 if num_rows else first_R
    slots = [slots_M for _, _, slots_M in parts]
    return Runs(
        num_rows=num_rows,
        page_size=page_size,
        first_R=first_R,
        count_R=last_R - first_R + 1,
        num_keys_R=visible_N[last_R],
        page_R=np.where(sequence_N[first_R] >= 0, page_of[sequence_N[first_R]], 0),
        slots_M=np.concatenate(slots) if slots else np.empty(0, dtype=np.int64),
    )
