"""What the ranks know of each sequence, so that a step message carries differences only.

Invariant: after a rank has applied a plan's `finished`, `started` and `tables`, in this order, its mirror of
every sequence equals the leader's table as of that plan; and before a sequence's rows run, it has all tokens
of it that the leader knew then.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from splash_core.ids import PageId, SeqId
from splash_core.scheduling.sequence import Sequence
from splash_core.scheduling.step import NewSequence, TableUpdate, TakenRows

Row = tuple[int, ...]
RowOf = Callable[[PageId], Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorDelta:
    """What a plan must tell the ranks before its rows run."""

    finished: tuple[SeqId, ...]
    started: tuple[NewSequence, ...]
    tables: tuple[TableUpdate, ...]
    taken: tuple[TakenRows, ...] = ()


class Mirrors:
    """The ranks' mirrors as of the last plan."""

    def __init__(self) -> None:
        self._rows: dict[SeqId, list[Row]] = {}
        self._to_come: dict[SeqId, list[Row]] = {}
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
        self._to_come.setdefault(update.seq, [])[update.first_page :] = update.slots

    def catch_up(self, sequence: Sequence, start: int, end: int) -> tuple[int, ...]:
        """The next plan has rows `start … end-1` of a sequence; returns what it must tell before them.

        Those are tokens that the ranks drew themselves, each on one rank.
        """
        told = self._told[sequence.seq]
        self._told[sequence.seq] = max(told, min(end, len(sequence.tokens)))
        return tuple(sequence.tokens[told:start])

    def appended(self, sequences: Iterable[Sequence], row_of: RowOf) -> MirrorDelta:
        """Tell what `sequences` have gained; no page has moved since the last plan.

        Args:
            sequences: those in the step.
            row_of: a page's slot on each rank.
        """

        def unchanged(sequence: Sequence, before: list[Row]) -> int:
            del sequence
            return len(before)

        return self._delta(sequences, row_of, unchanged)

    def moved(
        self, sequences: Iterable[Sequence], row_of: RowOf, taken: Iterable[TakenRows] = ()
    ) -> MirrorDelta:
        """Tell all differences: a manifest may have moved any page of any sequence.

        Args:
            sequences: those in the step and all others that the ranks know.
            row_of: a page's slot on each rank.
            taken: what takes its row to come, which the ranks know, in the same plan.
        """
        # A sequence that was preempted since has lost its rows, and is not named in the plan.
        named = tuple(rows for rows in taken if rows.seq in self._rows)
        known = {rows.seq: rows.num_pages for rows in named}
        for seq, count in known.items():
            self._rows[seq][:count] = self._to_come[seq][:count]

        def unchanged(sequence: Sequence, before: list[Row]) -> int:
            first = known.get(sequence.seq, 0)
            pairs = enumerate(zip(before[first:], sequence.pages[first:], strict=False), first)
            return next((index for index, (row, page) in pairs if row != row_of(page)), len(before))

        return replace(self._delta(sequences, row_of, unchanged), taken=named)

    def _delta(
        self,
        sequences: Iterable[Sequence],
        row_of: RowOf,
        unchanged: Callable[[Sequence, list[Row]], int],
    ) -> MirrorDelta:
        finished = tuple(self._dropped)
        self._dropped.clear()
        started: list[NewSequence] = []
        tables: list[TableUpdate] = []
        for sequence in sequences:
            rows = self._rows.get(sequence.seq)
            if rows is None:
                started.append(_new(sequence))
                rows = self._rows[sequence.seq] = []
                self._told[sequence.seq] = len(sequence.tokens)
            same = unchanged(sequence, rows)
            if same < len(sequence.pages):
                rows[same:] = [row_of(page) for page in sequence.pages[same:]]
                tables.append(TableUpdate(seq=sequence.seq, first_page=same, slots=tuple(rows[same:])))
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
