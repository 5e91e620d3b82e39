"""Which rows run next: decode rows first, then chunks of prompts, oldest first, under a token budget.

FCFS without starvation: within each kind the oldest sequence is served first, prompts being computed
advance by at least one row in every step in which pages allow, and a waiting sequence is admitted only if
all before it were.
"""

from dataclasses import dataclass

from splash_core.ids import SeqId
from splash_core.scheduling.admission import Admission
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.sequence import Roster, SeqState, Sequence


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one sequence in the next step, from its first token without KV."""

    sequence: Sequence
    count: int


class Batcher:
    """Fills a step with rows and gives them pages."""

    def __init__(
        self, *, roster: Roster, residency: Residency, admission: Admission, config: SchedulerConfig
    ) -> None:
        self._roster = roster
        self._residency = residency
        self._admission = admission
        self._config = config

    def fill(self) -> tuple[Rows, ...]:
        """The rows of the next step; their pages are allocated. May preempt."""
        running = self._roster.within(SeqState.RUNNING)
        chosen: dict[SeqId, Rows] = {}
        for sequence in running:
            if sequence.decoding:
                self._grow(sequence, 1, chosen)
        budget = max(self._config.chunk_tokens - len(chosen), 1)
        for sequence in running:
            if not sequence.decoding and sequence.remaining > 0 and budget > 0:
                budget -= self._grow(sequence, budget, chosen)
        if all(sequence.state is SeqState.RUNNING for sequence in running):
            # Nothing was preempted, so there may be room for more.
            self._admit(budget, chosen)
        return tuple(rows for rows in chosen.values() if rows.sequence.state is SeqState.RUNNING)

    def _grow(self, sequence: Sequence, limit: int, chosen: dict[SeqId, Rows]) -> int:
        """Give a running sequence up to `limit` rows; preempts younger ones only for the first of them."""
        if sequence.state is not SeqState.RUNNING:
            return 0
        want = sequence.cached + min(sequence.remaining, limit)
        covered = self._residency.extend(sequence, want)
        if covered <= sequence.cached:
            if not self._residency.secure(sequence, sequence.cached + 1):
                return 0
            covered = self._residency.extend(sequence, want)
        count = covered - sequence.cached
        chosen[sequence.seq] = Rows(sequence, count)
        return count

    def _admit(self, budget: int, chosen: dict[SeqId, Rows]) -> None:
        room = self._config.max_running - len(self._roster.active())
        waiting = self._roster.within(SeqState.WAITING)
        if waiting:
            self._residency.table.settle()  # what a switch has left is theirs at once
        for sequence in waiting:
            if budget <= 0 or room <= 0:
                return
            owner = self._admission.choose_owner(sequence, landing=False)
            if owner is None:
                return
            sequence.owner = owner
            sequence.state = SeqState.RUNNING
            room -= 1
            budget -= self._grow(sequence, budget, chosen)
