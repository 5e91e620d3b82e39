"""What the ranks know of each sequence, so that a step message carries differences only.

Invariant: after a rank has applied a plan's `finished`, `started` and `tables`, in this order, its mirror of
every sequence equals the leader's table as of that plan.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from splash_core.ids import PageId, SeqId
from splash_core.scheduling.sequence import Sequence
from splash_core.scheduling.step import NewSequence, TableUpdate

Rows = tuple[tuple[int, ...], ...]
RowOf = Callable[[PageId], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorDelta:
    """What a plan must tell the ranks before its rows run."""

    finished: tuple[SeqId, ...]
    started: tuple[NewSequence, ...]
    tables: tuple[TableUpdate, ...]


class Mirrors:
    """The ranks' mirrors as of the last plan."""

    def __init__(self) -> None:
        self._rows: dict[SeqId, Rows] = {}
        self._dropped: list[SeqId] = []

    def drop(self, seq: SeqId) -> None:
        """The sequence has ended or was preempted: ranks forget it with the next plan."""
        if self._rows.pop(seq, None) is not None:
            self._dropped.append(seq)

    def knows(self, seq: SeqId) -> bool:
        """True when the ranks mirror the sequence."""
        return seq in self._rows

    def appended(self, sequences: Iterable[Sequence], row_of: RowOf) -> MirrorDelta:
        """Tell what `sequences` have gained; no page has moved since the last plan.

        Args:
            sequences: those in the step.
            row_of: a page's slot on each rank.
        """

        def rows(sequence: Sequence, before: Rows) -> Rows:
            return (*before, *(row_of(page) for page in sequence.pages[len(before) :]))

        return self._delta(sequences, rows)

    def moved(self, sequences: Iterable[Sequence], row_of: RowOf) -> MirrorDelta:
        """Tell all differences: a manifest may have moved any page of any sequence.

        Args:
            sequences: those in the step and all others that the ranks know.
            row_of: a page's slot on each rank.
        """

        def rows(sequence: Sequence, before: Rows) -> Rows:
            del before
            return tuple(row_of(page) for page in sequence.pages)

        return self._delta(sequences, rows)

    def _delta(
        self, sequences: Iterable[Sequence], rows_now: Callable[[Sequence, Rows], Rows]
    ) -> MirrorDelta:
        finished = tuple(self._dropped)
        self._dropped.clear()
        started: list[NewSequence] = []
        tables: list[TableUpdate] = []
        for sequence in sequences:
            if sequence.seq not in self._rows:
                started.append(_new(sequence))
            before = self._rows.get(sequence.seq, ())
            now = rows_now(sequence, before)
            same = _common_prefix(before, now)
            if same < max(len(before), len(now)):
                tables.append(TableUpdate(seq=sequence.seq, first_page=same, slots=now[same:]))
            self._rows[sequence.seq] = now
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


def _common_prefix(before: Rows, now: Rows) -> int:
    for index, (old, new) in enumerate(zip(before, now, strict=False)):
        if old is not new and old != new:
            return index
    return min(len(before), len(now))
