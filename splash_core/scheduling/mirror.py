"""What the ranks know of each sequence, so that a step message carries differences only.

Invariant: after a rank has applied a plan's `finished`, `started` and `tables`, in this order, its mirror of
every sequence equals the leader's table as of that plan; and before a sequence's rows run, it has all tokens
of it that the leader knew then.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from splash_core.ids import PageId, SeqId
from splash_core.layout.columns import Column, SlotRows, column, first_difference
from splash_core.scheduling.sequence import Sequence
from splash_core.scheduling.step import NewSequence, TableUpdate, TakenRows

RowsOf = Callable[[Seq[PageId]], SlotRows]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorDelta:
    """What a plan must tell the ranks before its rows run."""

    finished: tuple[SeqId, ...]
    started: tuple[NewSequence, ...]
    tables: tuple[TableUpdate, ...]
    taken: tuple[TakenRows, ...] = ()


class MirrorBook:
    """The mirrors of all ranks as of the last plan.

    Args:
        num_ranks: T.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._rows: dict[SeqId, Column] = {}
        """Row after row."""
        self._to_come: dict[SeqId, Column] = {}
        self._told: dict[SeqId, int] = {}
        """How many first tokens of each sequence the ranks have been told."""
        self._dropped: list[SeqId] = []

    def drop(self, seq: SeqId) -> None:
        """The sequence has ended or was preempted: ranks forget it with the next plan."""
        self._to_come.pop(seq, None)
        self._told.pop(seq, None)
        if self._rows.pop(seq, None) is not None:
            self._dropped.append(seq)

    def knows(self, seq: SeqId) -> bool:
        """True when the ranks mirror the sequence."""
        return seq in self._rows

    def tell_ahead(self, update: TableUpdate) -> None:
        """The next plan tells rows to come of a sequence that the ranks know."""
        self._to_come.setdefault(update.seq, column())[self._place(update.first_page) :] = update.slots.slots

    def catch_up(self, sequence: Sequence, start: int, end: int) -> tuple[int, ...]:
        """The next plan has rows `start … end-1` of a sequence; returns what it must tell before them.

        Those are tokens that the ranks drew themselves, each on one rank.
        """
        told = self._told[sequence.seq]
        self._told[sequence.seq] = max(told, min(end, len(sequence.tokens)))
        return tuple(sequence.tokens[told:start])

    def appended(self, sequences: Iterable[Sequence], rows_of: RowsOf) -> MirrorDelta:
        """Tell what `sequences` have gained; no page has moved since the last plan.

        Args:
            sequences: those in the step.
            rows_of: slots of pages on each rank.
        """

        def gained(sequence: Sequence, before: Column) -> TableUpdate:
            first = len(before) // self._num_ranks
            return TableUpdate(seq=sequence.seq, first_page=first, slots=rows_of(sequence.pages[first:]))

        return self._delta(sequences, gained)

    def moved(
        self, sequences: Iterable[Sequence], rows_of: RowsOf, taken: Iterable[TakenRows] = ()
    ) -> MirrorDelta:
        """Tell all differences: a manifest may have moved any page of any sequence.

        Args:
            sequences: those in the step and all others that the ranks know.
            rows_of: slots of pages on each rank.
            taken: what takes its row to come, which the ranks know, in the same plan.
        """
        # A sequence that was preempted since has lost its rows, and is not named in the plan.
        named = tuple(rows for rows in taken if rows.seq in self._rows)
        known = {rows.seq: rows.num_pages for rows in named}
        for seq, count in known.items():
            end = self._place(count)
            self._rows[seq][:end] = self._to_come[seq][:end]

        def changed(sequence: Sequence, before: Column) -> TableUpdate:
            first = known.get(sequence.seq, 0)
            now = rows_of(sequence.pages[first:]).slots
            same = first_difference(before[self._place(first) :], now) // self._num_ranks
            rows = SlotRows(self._num_ranks, now[self._place(same) :])
            return TableUpdate(seq=sequence.seq, first_page=first + same, slots=rows)

        return replace(self._delta(sequences, changed), taken=named)

    def _place(self, page: int) -> int:
        """Where the row of a page begins."""
        return page * self._num_ranks

    def _delta(
        self, sequences: Iterable[Sequence], update_of: Callable[[Sequence, Column], TableUpdate]
    ) -> MirrorDelta:
        finished = tuple(self._dropped)
        self._dropped.clear()
        started: list[NewSequence] = []
        tables: list[TableUpdate] = []
        for sequence in sequences:
            rows = self._rows.get(sequence.seq)
            if rows is None:
                started.append(_new(sequence))
                rows = self._rows[sequence.seq] = column()
                self._told[sequence.seq] = len(sequence.tokens)
            update = update_of(sequence, rows)
            if len(update.slots):
                rows[self._place(update.first_page) :] = update.slots.slots
                tables.append(update)
        return MirrorDelta(finished=finished, started=tuple(started), tables=tuple(tables))


def _new(sequence: Sequence) -> NewSequence:
    sampling = sequence.sampling
    if sequence.prompt_reported:
        # Recomputed, or prefilled elsewhere: nobody waits for the prompt's scores any more.
        sampling = replace(sampling, prompt_logprobs=None)
    return NewSequence(
        seq=sequence.seq,
        sampling=sampling,
        tokens=tuple(sequence.tokens),
        num_prompt=sequence.num_prompt,
    )
