"""A rank's mirrors of the leader's state: page tables and token histories of live sequences.

Mirrors change only by what a plan says, in the order of plans, so all ranks always agree.
"""

from dataclasses import dataclass, field

import numpy as np

from splash_core.attention.batch import IntArray
from splash_core.errors import InvariantBroken
from splash_core.ids import SeqId
from splash_core.scheduling.step import DrawnToken, NewSequence, SequenceStep, StepPlan, TableUpdate
from splash_core.spec.request import SamplingParams


@dataclass(slots=True, kw_only=True)
class SequenceMirror:
    """What a rank knows of one sequence."""

    sampling: SamplingParams
    num_prompt: int
    tokens: list[int]
    """Prompt, then output, as far as the host was told; grows as rows arrive."""
    table_PT: IntArray
    """`[pages, T]` slots."""
    to_come_PT: IntArray
    """Of the first pages: where they will be after a switch that copies ahead."""

    @property
    def prompt(self) -> list[int]:
        """The prompt's token ids."""
        return self.tokens[: self.num_prompt]

    @property
    def output(self) -> list[int]:
        """Generated token ids as far as the host was told."""
        return self.tokens[self.num_prompt :]


@dataclass(slots=True)
class SequenceMirrors:
    """Mirrors of all live sequences of a group."""

    num_ranks: int
    by_seq: dict[SeqId, SequenceMirror] = field(default_factory=dict)

    def apply(self, plan: StepPlan) -> None:
        """Take over what the plan says of sequences, tables and tokens, before its rows run."""
        for seq in plan.finished:
            self.by_seq.pop(seq, None)
        for new in plan.started:
            self._start(new)
        for rows in plan.taken:
            mirror = self[rows.seq]
            mirror.table_PT = _joined(mirror.to_come_PT, rows.num_pages, mirror.table_PT[rows.num_pages :])
        for update in plan.ahead:
            mirror = self[update.seq]
            mirror.to_come_PT = _joined(mirror.to_come_PT, update.first_page, self._pages(update))
        for update in plan.tables:
            mirror = self[update.seq]
            mirror.table_PT = _joined(mirror.table_PT, update.first_page, self._pages(update))
        for step in plan.sequences:
            self._take_tokens(step)

    def tables(self) -> dict[SeqId, IntArray]:
        """Page tables of all live sequences."""
        return {seq: mirror.table_PT for seq, mirror in self.by_seq.items()}

    def __getitem__(self, seq: SeqId) -> SequenceMirror:
        try:
            return self.by_seq[seq]
        except KeyError:
            raise InvariantBroken(f"the plan names sequence {seq}, which was never started") from None

    def _start(self, new: NewSequence) -> None:
        self.by_seq[new.seq] = SequenceMirror(
            sampling=new.sampling,
            num_prompt=new.num_prompt,
            tokens=list(new.tokens),
            table_PT=np.empty((0, self.num_ranks), dtype=np.int64),
            to_come_PT=np.empty((0, self.num_ranks), dtype=np.int64),
        )

    def _pages(self, update: TableUpdate) -> IntArray:
        return np.asarray(update.slots.slots, dtype=np.int64).reshape(-1, self.num_ranks)

    def _take_tokens(self, step: SequenceStep) -> None:
        tokens = self[step.seq].tokens
        tokens[step.start - len(step.before) : step.start] = step.before
        if not isinstance(step.tokens, DrawnToken):
            # Rows are recomputed after a preemption: they repeat known tokens.
            tokens[step.start : step.end] = step.tokens


def _joined(before_PT: IntArray, first: int, rows_PT: IntArray) -> IntArray:
    """Rows that replace all of a table from page `first` on."""
    if first > len(before_PT):
        raise InvariantBroken(f"a table of {len(before_PT)} pages is to be changed from page {first} on")
    return np.concatenate([before_PT[:first], rows_PT])
