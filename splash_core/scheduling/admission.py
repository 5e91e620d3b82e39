"""Who may start, and on which owner: by projected KV growth and by batch balance (docs/model.md §8).

A sequence is charged on each rank with the pages that it will hold there once it has produced all that it
asked for. Admission keeps charges within the pool, so that without a switch nothing is ever preempted.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from splash_core.ids import PageId, RankId
from splash_core.layout.layout import KvMode, KvPlacement
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Holding, Present, spread
from splash_core.scheduling.sequence import Roster, SeqState, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLoad:
    """Pages per rank, `[T]` each."""

    charged: list[int]
    """Projected for everything admitted."""
    due: list[int]
    """Of those, needed for tokens that are known already but not allocated yet."""
    owned: list[int]
    """Sequences that prefer each rank as owner."""


class Leaving(Protocol):
    """Pages on their way out of the group."""

    @property
    def left_over(self) -> Collection[PageId]:
        """Pages without a sequence that are still being pushed."""
        ...


class Admission:
    """Judges room for sequences that do not hold pages yet."""

    def __init__(
        self,
        *,
        roster: Roster,
        residency: Holding,
        present: Present,
        pushes: Leaving,
        config: SchedulerConfig,
    ) -> None:
        self.quarantine: list[PageId] = []
        """Pages without a sequence that a writer outside may still reach."""
        self._roster = roster
        self._residency = residency
        self._present = present
        self._pushes = pushes
        self._config = config
        self._turn = 0

    def load(self) -> PageLoad:
        """Charges of everything that holds pages."""
        residency = self._residency
        size = residency.num_ranks
        load = PageLoad(charged=[0] * size, due=[0] * size, owned=[0] * size)
        for page in (*self.quarantine, *self._pushes.left_over):
            for rank in residency.ranks(page):
                load.charged[rank] += 1
        for sequence in self._roster.active():
            load.owned[sequence.owner] += 1
            self._charge(sequence, load)
        return load

    def choose_owner(self, sequence: Sequence, *, landing: bool) -> RankId | None:
        """The best owner with room for the sequence, or None when there is no room now.

        Args:
            sequence: holds no pages yet.
            landing: True when its known tokens land from outside, so must fit into ordinary slots.
        """
        load = self.load()
        size = self._residency.num_ranks
        candidates = [RankId((self._turn + index) % size) for index in range(size)]
        fitting = [owner for owner in candidates if self._fits(sequence, owner, load)]
        if landing:
            landings = {owner: self._landing(sequence, owner) for owner in fitting}
            fitting = [owner for owner in fitting if not self._residency.lack(landings[owner])]
            if landings and not fitting:
                self._residency.wanted_ordinary = min(
                    landings.values(), key=lambda landing: sum(self._residency.lack(landing).values())
                )
        if not fitting:
            return None
        pages = self._residency.pages_for(sequence.held_tokens)
        capacity = self._residency.capacity(self._present.layout).pages
        total = sum(load.owned) + 1

        def imbalance(owner: RankId) -> int:
            # Share of the pool plus share of the batch, over a common denominator; the first minimum wins.
            return (load.charged[owner] + pages) * total + load.owned[owner] * capacity

        self._turn += 1
        return min(fitting, key=imbalance)

    def landing_placement(self, owner: RankId, rotation: int) -> KvPlacement:
        """One copy of each page: where the layout wants it, striped where it wants it everywhere."""
        placement = self._present.rule.placement(
            num_ranks=self._residency.num_ranks, owner=owner, rotation=rotation
        )
        return KvPlacement(
            owners=placement.owners, mode=KvMode.STRIPED, rotation=rotation % len(placement.owners)
        )

    def _fits(self, sequence: Sequence, owner: RankId, load: PageLoad) -> bool:
        residency = self._residency
        size = residency.num_ranks
        placement = self._present.rule.placement(num_ranks=size, owner=owner, rotation=sequence.rotation)
        projected = spread(placement, residency.pages_for(sequence.held_tokens), size)
        needed = spread(placement, residency.pages_for(self.first_tokens(sequence)), size)
        room = residency.capacity(self._present.layout).pages * self._config.admission_overcommit
        for rank in (RankId(rank) for rank in range(size)):
            if projected[rank] and load.charged[rank] + projected[rank] > room:
                return False
            if needed[rank] and needed[rank] + load.due[rank] > residency.free(rank):
                return False
        return True

    def _landing(self, sequence: Sequence, owner: RankId) -> dict[RankId, int]:
        """Ordinary slots that the sequence's landing takes on each rank."""
        pages = self._residency.pages_for(self.first_tokens(sequence))
        placement = self.landing_placement(owner, sequence.rotation)
        counts = spread(placement, pages, self._residency.num_ranks)
        return {RankId(rank): count for rank, count in enumerate(counts)}

    def first_tokens(self, sequence: Sequence) -> int:
        """Tokens to find room for at once: those there are, and the next one where there will be one."""
        return min(sequence.length + 1, sequence.held_tokens)

    def _charge(self, sequence: Sequence, load: PageLoad) -> None:
        residency = self._residency
        size = residency.num_ranks
        if sequence.state is SeqState.HANDOFF:
            for rank, pages in enumerate(residency.copies_per_rank(sequence)):
                load.charged[rank] += pages
            return
        placement = residency.placement(sequence)
        pages = residency.pages_for(sequence.held_tokens)
        first = residency.pages_for(self.first_tokens(sequence))
        if placement.alike and sequence.state is SeqState.RUNNING:
            # In place, so the same on each owner.
            charged, due = max(pages, sequence.num_pages), max(first - sequence.num_pages, 0)
            for rank in placement.owners:
                load.charged[rank] += charged
                load.due[rank] += due
            return
        projected, needed = spread(placement, pages, size), spread(placement, first, size)
        held = residency.copies_per_rank(sequence)
        for rank in range(size):
            load.charged[rank] += max(projected[rank], held[rank])
            load.due[rank] += max(needed[rank] - held[rank], 0)
