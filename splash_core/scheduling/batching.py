"""Which rows run next: decode rows first, then chunks of prompts, oldest first, under a token budget.

No starvation: within each kind sequences are served in their order of precedence, which is arrival but for
priorities (`sequence.Roster`); in every step in which pages allow, the first prompt advances by at least one
row, and so does the first of each owner where decode rows leave a row for each; and a waiting sequence is
admitted only if all before it were.
The budget is divided over owners (`budget`), because a step takes as long as its fullest rank.
Beside a step under way nothing is taken away from anybody: rows that need it wait for the step to end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from splash_core.ids import RankId, SeqId
from splash_core.scheduling.admission import Admission
from splash_core.scheduling.budget import StepBudget, share
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Holding
from splash_core.scheduling.sequence import Roster, SeqState, Sequence


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """Rows of one sequence in the next step, from its first token without KV."""

    sequence: Sequence
    count: int


Lane = tuple[RankId, ...]
"""The ranks that hold a sequence's history: sequences of one lane share what a step takes there."""

Cover = Callable[[Sequence, int], int]
"""Gives a sequence pages for its first so many tokens as far as possible; returns the tokens covered."""


class _PagesLack(Exception):
    """A row needs a page that is not free."""


@dataclass(slots=True)
class _Round:
    """Rows of a step that are left to give."""

    budget: int
    part: int
    """Of each lane in the first round."""
    used: dict[Lane, int] = field(default_factory=dict[Lane, int])

    def take(self, sequence: Sequence, lane: Lane, cover: Cover, chosen: dict[SeqId, SequenceRows]) -> None:
        """The first round: what is left of the lane's part."""
        limit = min(self.part - self.used.get(lane, 0), self.budget)
        count = _take(sequence, limit, cover, chosen) if limit > 0 else 0
        self.used[lane] = self.used.get(lane, 0) + count
        self.budget -= count

    def top_up(self, sequence: Sequence, cover: Cover, chosen: dict[SeqId, SequenceRows]) -> None:
        """The second round: what no lane could use."""
        before = chosen[sequence.seq].count if sequence.seq in chosen else 0
        if self.budget <= 0 or sequence.remaining <= before:
            return
        self.budget -= max(_take(sequence, before + self.budget, cover, chosen) - before, 0)


class Batcher:
    """Fills a step with rows and gives them pages."""

    def __init__(
        self,
        *,
        roster: Roster,
        residency: Holding,
        admission: Admission,
        budget: StepBudget,
        config: SchedulerConfig,
    ) -> None:
        self._roster = roster
        self._residency = residency
        self._admission = admission
        self._budget = budget
        self._config = config

    def fill(self) -> tuple[SequenceRows, ...]:
        """The rows of the next step, when none is under way; their pages are allocated. May preempt."""
        return self._fill(self._secure)

    def fill_ahead(self) -> tuple[SequenceRows, ...] | None:
        """The rows of the next step beside one that is under way; None: they must wait for its end."""
        try:
            return self._fill(self._find_free)
        except _PagesLack:
            return None

    def _fill(self, cover: Cover) -> tuple[SequenceRows, ...]:
        running = self._roster.going_on(SeqState.RUNNING)
        chosen: dict[SeqId, SequenceRows] = {}
        for sequence in running:
            if sequence.decoding:
                _take(sequence, 1, cover, chosen)
        round_ = self._round(running, max(self._budget.rows - len(chosen), 1))
        prompts = [s for s in running if not s.decoding and s.remaining > 0]
        for sequence in prompts:
            round_.take(sequence, self._lane(sequence), cover, chosen)
        if all(sequence.state is SeqState.RUNNING for sequence in running):
            # Nothing was preempted, so there may be room for more.
            prompts += self._admit(round_, cover, chosen)
        for sequence in prompts:
            round_.top_up(sequence, cover, chosen)
        return tuple(rows for rows in chosen.values() if rows.sequence.state is SeqState.RUNNING)

    def _round(self, running: list[Sequence], budget: int) -> _Round:
        """The first round's parts: an owner for each prompt that waits, as far as there are owners."""
        busy = {self._lane(s) for s in running if not s.decoding and s.remaining > 0}
        waiting = len(self._roster.going_on(SeqState.WAITING))
        lanes = min(len(busy) + waiting, self._residency.num_lanes)
        return _Round(budget, share(budget, max(lanes, len(busy))))

    def _lane(self, sequence: Sequence) -> Lane:
        return self._residency.placement(sequence).owners

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

    def _admit(self, round_: _Round, cover: Cover, chosen: dict[SeqId, SequenceRows]) -> list[Sequence]:
        """Start waiting sequences while the round has rows for them; returns them."""
        room = self._config.max_running - len(self._roster.active())
        waiting = self._roster.going_on(SeqState.WAITING)
        admitted: list[Sequence] = []
        if waiting:
            self._residency.settle()  # what a switch has left is theirs at once
        for sequence in waiting:
            if round_.budget <= 0 or len(admitted) >= room:
                break
            owner = self._admission.choose_owner(sequence, landing=False)
            if owner is None:
                break
            sequence.owner = owner
            sequence.state = SeqState.RUNNING
            admitted.append(sequence)
            round_.take(sequence, self._lane(sequence), cover, chosen)
        return admitted


def _take(sequence: Sequence, limit: int, cover: Cover, chosen: dict[SeqId, SequenceRows]) -> int:
    """Give a running sequence up to `limit` rows, as far as it gets pages."""
    if sequence.state is not SeqState.RUNNING:
        return 0
    count = cover(sequence, sequence.cached + min(sequence.remaining, limit)) - sequence.cached
    if count <= 0:
        return 0
    chosen[sequence.seq] = SequenceRows(sequence, count)
    return count
