"""A step's rows, on the host: built once per step from the plan and the mirrored page tables.

Every rank builds the same batch (only `rank` differs), so all counts that collectives need are known
everywhere without asking. Rows are home-major (see `layout.homes`).

Legend: N rows of the step, T ranks, P page size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splash_core.ids import RankId, SeqId
from splash_core.kernels.base import IntArray
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.homes import Homes, RowsOfSequence, assign_homes
from splash_core.layout.layout import RULES
from splash_core.layout.ownership import NO_SLOT
from splash_core.scheduling.step import DrawnToken, StepPlan

PADDING = -1
"""In place of a sequence's index: a row that computes nothing anybody reads."""

UNKNOWN = 0
"""In place of a token that is on the device only; it has an embedding, so a padding row may repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSequence:
    """One sequence's part of the step."""

    seq: SeqId
    start: int
    """Tokens cached before this step."""
    count: int
    """Rows in this step."""
    sample: bool
    table_PT: IntArray
    """`[pages, T]`: slot of each page on each rank, or NO_SLOT."""

    @property
    def end(self) -> int:
        """Tokens cached after this step."""
        return self.start + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All rows of a step, in home-major order."""

    rank: RankId
    num_ranks: int
    page_size: int
    form: AttentionForm
    cp_storage: CpStorage
    sequences: tuple[BatchSequence, ...]
    counts: tuple[int, ...]
    """Rows at home on each rank."""
    padded: bool
    """See `attention.padding`: all ranks have equally many rows, and which rows cross ranks follows from that
    alone."""
    sequence_N: IntArray
    """Index into `sequences` of each row, or `PADDING`."""
    position_N: IntArray
    token_N: IntArray
    drawn_N: NDArray[np.bool_]
    """Rows whose token the step before draws: `token_N` holds `UNKNOWN` in its place."""

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.position_N)

    @property
    def home(self) -> slice:
        """This rank's rows among the N."""
        return self.rows_of(self.rank)

    def rows_of(self, rank: int) -> slice:
        """The rows at home on `rank`."""
        first = sum(self.counts[:rank])
        return slice(first, first + self.counts[rank])

    def slots_on(self, rank: int) -> IntArray:
        """`[N]`: the slot on `rank` where each row's KV belongs, or NO_SLOT."""
        slots_N = np.full(self.num_rows, NO_SLOT, dtype=np.int64)
        some_row_S = np.zeros(len(self.sequences) + 1, dtype=np.int64)
        some_row_S[self.sequence_N] = np.arange(self.num_rows)  # padding falls on the extra place, -1
        for index, sequence in enumerate(self.sequences):
            if sequence.count == 1:  # the only row: a decode step has hundreds of these
                slots_N[some_row_S[index]] = sequence.table_PT[sequence.start // self.page_size, rank]
                continue
            rows = self.sequence_N == index
            slots_N[rows] = sequence.table_PT[self.position_N[rows] // self.page_size, rank]
        return slots_N

    def holders_NT(self) -> NDArray[np.bool_]:
        """`[N, T]`: which ranks are asked about each row: those that hold any visible key of its sequence.

        In a padded batch that is every rank: one without keys answers 0 and lse -inf.
        """
        if self.padded:
            return np.ones((self.num_rows, self.num_ranks), dtype=np.bool_)
        holders_ST = np.zeros((len(self.sequences), self.num_ranks), dtype=np.bool_)
        for index, sequence in enumerate(self.sequences):
            pages = -(-sequence.end // self.page_size)
            holders_ST[index] = (sequence.table_PT[:pages] != NO_SLOT).any(axis=0)
        return holders_ST[self.sequence_N]

    def writers_NT(self) -> NDArray[np.bool_]:
        """`[N, T]`: which ranks write each row's KV. In a padded batch that is the home rank alone."""
        written_NT = np.stack([self.slots_on(rank) != NO_SLOT for rank in range(self.num_ranks)], axis=1)
        if self.padded:
            home_NT = np.zeros_like(written_NT)
            for rank in range(self.num_ranks):
                home_NT[self.rows_of(rank), rank] = True
            assert not (written_NT & ~home_NT).any(), "a padded row is written away from home"
            return home_NT
        return written_NT


def rows_by_sequence(batch: Batch, rows_N: IntArray) -> Iterator[tuple[BatchSequence, IntArray]]:
    """Each sequence among some rows, and which of these are its own, ascending; padding is left out.

    Args:
        batch: the step.
        rows_N: row numbers in the batch.
    """
    index_N = batch.sequence_N[rows_N]
    order_N = np.argsort(index_N, kind="stable")
    present, starts = np.unique(index_N[order_N], return_index=True)
    ends = np.append(starts[1:], len(rows_N))
    for index, start, end in zip(present, starts, ends, strict=False):
        if index != PADDING:
            yield batch.sequences[index], order_N[start:end]


def build_batch(
    plan: StepPlan,
    tables: Mapping[SeqId, IntArray],
    *,
    rank: RankId,
    num_ranks: int,
    page_size: int,
) -> Batch:
    """The batch of a plan, given each sequence's mirrored page table `[pages, T]`."""
    sequences = _sequences(plan, tables)
    homes = assign_homes(
        RULES[plan.layout].history,
        [_rows(sequence, page_size) for sequence in sequences],
        num_ranks=num_ranks,
        page_size=page_size,
    )
    counts = tuple(sum(run.count for run in ranges) for ranges in homes)
    sequence_N, position_N, token_N = _flatten(plan, homes)
    drawn_S = np.asarray([isinstance(step.tokens, DrawnToken) for step in plan.sequences], dtype=np.bool_)
    return Batch(
        rank=rank,
        num_ranks=num_ranks,
        page_size=page_size,
        form=plan.form,
        cp_storage=plan.cp_storage,
        sequences=sequences,
        counts=counts,
        padded=False,
        sequence_N=sequence_N,
        position_N=position_N,
        token_N=token_N,
        drawn_N=drawn_S[sequence_N],
    )


def _sequences(plan: StepPlan, tables: Mapping[SeqId, IntArray]) -> tuple[BatchSequence, ...]:
    return tuple(
        BatchSequence(
            seq=step.seq,
            start=step.start,
            count=step.count,
            sample=step.sample,
            table_PT=tables[step.seq],
        )
        for step in plan.sequences
    )


def _rows(sequence: BatchSequence, page_size: int) -> RowsOfSequence:
    first, last = sequence.start // page_size, (sequence.end - 1) // page_size
    # argmax of a boolean row is the first rank that holds the page.
    holders = (sequence.table_PT[first : last + 1] != NO_SLOT).argmax(axis=1)
    return RowsOfSequence(
        start=sequence.start,
        count=sequence.count,
        page_holders=tuple(RankId(int(holder)) for holder in holders),
    )


def _flatten(plan: StepPlan, homes: Homes) -> tuple[IntArray, IntArray, IntArray]:
    index: list[int] = []
    positions: list[int] = []
    tokens: list[int] = []
    for ranges in homes:
        for run in ranges:
            step = plan.sequences[run.sequence]
            index.extend([run.sequence] * run.count)
            positions.extend(range(step.start + run.first, step.start + run.first + run.count))
            known = (UNKNOWN,) if isinstance(step.tokens, DrawnToken) else step.tokens
            tokens.extend(known[run.first : run.first + run.count])
    return (
        np.asarray(index, dtype=np.int64),
        np.asarray(positions, dtype=np.int64),
        np.asarray(tokens, dtype=np.int64),
    )
