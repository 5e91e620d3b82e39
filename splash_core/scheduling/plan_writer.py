"""Writes a step down as the message that all ranks receive."""

from splash_core.ids import StepId
from splash_core.scheduling.attention_choice import AttentionChooser, ChunkShape
from splash_core.scheduling.batching import SequenceRows
from splash_core.scheduling.holding import Present
from splash_core.scheduling.mirror import MirrorBook, MirrorDelta
from splash_core.scheduling.precopy import AheadStep
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.sequence import Roster, Sequence
from splash_core.scheduling.step import DrawnToken, SequenceStep, StepPlan
from splash_core.scheduling.switching import Boundary


class PlanWriter:
    """Numbers steps and tells ranks the differences to what they know."""

    def __init__(
        self,
        *,
        chooser: AttentionChooser,
        roster: Roster,
        mirrors: MirrorBook,
        residency: Residency,
        present: Present,
    ) -> None:
        self.num_steps = 0
        """Steps written so far."""
        self._chooser = chooser
        self._roster = roster
        self._mirrors = mirrors
        self._residency = residency
        self._present = present

    def write(
        self,
        rows: tuple[SequenceRows, ...],
        boundary: Boundary,
        ahead: AheadStep | None,
        *,
        switch_near: bool,
    ) -> StepPlan:
        """The plan of the next step."""
        for update in () if ahead is None else ahead.rows:
            self._mirrors.tell_ahead(update)
        delta = self._delta([entry.sequence for entry in rows], boundary)
        choice = self._chooser.choose(
            self._present.rule,
            [ChunkShape(entry.sequence.cached, entry.count, entry.sequence.owner) for entry in rows],
        )
        sequences = tuple(map(self._sequence_step, rows))
        self.num_steps += 1
        return StepPlan(
            step=StepId(self.num_steps),
            epoch=self._present.epoch,
            layout=self._present.layout,
            sequences=sequences,
            started=delta.started,
            tables=delta.tables,
            finished=delta.finished,
            manifest=boundary.manifest,
            mode=boundary.mode,
            precopy=None if ahead is None else ahead.batch,
            ahead=() if ahead is None else ahead.rows,
            taken=delta.taken,
            switch_near=switch_near,
            form=choice.form,
            cp_storage=choice.storage,
        )

    def _delta(self, running: list[Sequence], boundary: Boundary) -> MirrorDelta:
        rows_of = self._residency.table.rows
        if boundary.manifest is None:
            return self._mirrors.appended(running, rows_of)
        others = {sequence.seq: sequence for sequence in self._roster if self._mirrors.knows(sequence.seq)}
        for sequence in running:
            others.pop(sequence.seq, None)
        return self._mirrors.moved([*running, *others.values()], rows_of, boundary.ahead.taken)

    def _sequence_step(self, entry: SequenceRows) -> SequenceStep:
        sequence, start = entry.sequence, entry.sequence.cached
        end = start + entry.count
        # One step is under way at most, so a token that is not known yet is the one that it draws.
        known = start < len(sequence.tokens)
        return SequenceStep(
            seq=sequence.seq,
            start=start,
            tokens=tuple(sequence.tokens[start:end]) if known else DrawnToken(StepId(self.num_steps)),
            sample=end == sequence.length and sequence.sampling.max_tokens > 0,
            before=self._mirrors.catch_up(sequence, start, end),
        )
