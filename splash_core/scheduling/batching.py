"""Which rows run next: decode rows first, then chunks of prompts, oldest first, under a token budget.

FCFS without starvation: within each kind the oldest sequence is served first, prompts being computed
advance by at least one row in every step in which pages allow, and a waiting sequence is admitted only if
all before it were.
Beside a step under way nothing is taken away from anybody: rows that need it wait for the step to end.
"""

from collections.abc import Callable
from dataclasses import dataclass

from splash_core.ids import SeqId
from splash_core.scheduling.admission import Admission
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Holding
from splash_core.scheduling.sequence import Roster, SeqState, Sequence


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one sequence in the next step, from its first token without KV."""

    sequence: Sequence
    count: int


Cover = Callable[[Sequence, int], int]
"""Gives a sequence pages for its first so many tokens as far as possible; returns the tokens covered."""


class _PagesLack(Exception):
    """A row needs a page that is not free."""


class Batcher:
    """Fills a step with rows and gives them pages."""

    def __init__(
        self, *, roster: Roster, residency: Holding, admission: Admission, config: SchedulerConfig
    ) -> None:
        self._roster = roster
        self._residency = residency
        self._admission = admission
        self._config = config

    def fill(self) -> tuple[Rows, ...]:
        """The rows of the next step, when none is under way; their pages are allocated. May preempt."""
        return self._fill(self._secure)

    def fill_ahead(self) -> tuple[Rows, ...] | None:
        """The rows of the next step beside one that is under way; None: they must wait for its end."""
        try:
            return self._fill(self._find_free)
        except _PagesLack:
            return None

    def _fill(self, cover: Cover) -> tuple[Rows, ...]:
        running = self._roster.going_on(SeqState.RUNNING)
        chosen: dict[SeqId, Rows] = {}
        for sequence in running:
            if sequence.decoding:
                _take(sequence, 1, cover, chosen)
        budget = max(self._config.chunk_tokens - len(chosen), 1)
        for sequence in running:
            if not sequence.decoding and sequence.remaining > 0 and budget > 0:
                budget -= _take(sequence, budget, cover, chosen)
        if all(sequence.state is SeqState.RUNNING for sequence in running):
            # Nothing was preempted, so there may be room for more.
            self._admit(budget, cover, chosen)
        return tuple(rows for rows in chosen.values() if rows.sequence.state is SeqState.RUNNING)

    def _secure(self, sequence: Sequence, tokens: int) -> int:
        """Preempts younger sequences, but only for the first row."""
        covered = self._residency.extend(sequence, tokens)
        if covered <= sequence.cached and self._residency.secure(sequence, sequence.cached + 1):
            covered = self._residency.extend(sequence, tokens)
        return covered

    def _find_free(self, sequence: Sequence, tokens: int) -> int:
        covered = self._residency.grow(sequence, tokens)
        if covered <= sequence.cached:
            raise _PagesLack
        return covered

    def _admit(self, budget: int, cover: Cover, chosen: dict[SeqId, Rows]) -> None:
        room = self._config.max_running - len(self._roster.active())
        waiting = self._roster.going_on(SeqState.WAITING)
        if waiting:
            self._residency.settle()  # what a switch has left is theirs at once
        for sequence in waiting:
            if budget <= 0 or room <= 0:
                return
            owner = self._admission.choose_owner(sequence, landing=False)
            if owner is None:
                return
            sequence.owner = owner
            sequence.state = SeqState.RUNNING
            room -= 1
            budget -= _take(sequence, budget, cover, chosen)


def _take(sequence: Sequence, limit: int, cover: Cover, chosen: dict[SeqId, Rows]) -> int:
    """Give a running sequence up to `limit` rows, as far as it gets pages."""
    if sequence.state is not SeqState.RUNNING:
        return 0
    count = cover(sequence, sequence.cached + min(sequence.remaining, limit)) - sequence.cached
    if count <= 0:
        return 0
    chosen[sequence.seq] = Rows(sequence, count)
    return count
