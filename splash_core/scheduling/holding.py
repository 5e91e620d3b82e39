"""Pages held by sequences, as batching, admission, owners and snapshots see them; and who gives way to whom.

Two kinds: `Residency` keeps a page table, the simulator counts. Precedence is age, moved by priority, in
both, with all users before all probes: only a younger sequence is ever preempted for an older one. So the
oldest user always gets what it needs, as soon as pages in use outside the group come back, and every
sequence of a user that was admitted finishes; a probe does while users leave it room.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache

from splash_core.ids import Epoch, PageId, RankId
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import RULES, KvPlacement, Layout, LayoutRule
from splash_core.scheduling.sequence import Roster, SeqState, Sequence


@dataclass(slots=True, kw_only=True)
class Present:
    """The layout that the next rows run in. Changes at step boundaries only."""

    layout: Layout
    epoch: Epoch = Epoch(0)

    @property
    def rule(self) -> LayoutRule:
        """The layout's rule."""
        return RULES[self.layout]

    def runs(self, layout: Layout) -> bool:
        """True when the group is in this layout already."""
        return layout == self.layout


class Holding(ABC):
    """Gives pages to sequences and takes them away."""

    def __init__(self, *, roster: Roster, present: Present, num_ranks: int, page_size: int) -> None:
        self.wanted_ordinary: dict[RankId, int] = {}
        """Free ordinary slots on each rank that a landing waits for."""
        self.num_ranks = num_ranks
        """T."""
        self.page_size = page_size
        """Tokens per page."""
        self._roster = roster
        self._present = present

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill."""
        return -(-tokens // self.page_size)

    def placement(self, sequence: Sequence) -> KvPlacement:
        """Where the present layout puts the sequence's pages."""
        return self._present.rule.placement(
            num_ranks=self.num_ranks, owner=sequence.owner, rotation=sequence.rotation
        )

    @property
    def num_lanes(self) -> int:
        """Sets of ranks among which the present layout divides the histories of different requests."""
        return _num_lanes(self._present.layout, self.num_ranks)

    @abstractmethod
    def capacity(self, layout: Layout) -> Capacity:
        """What the pools of all ranks hold in a layout."""

    @abstractmethod
    def free(self, rank: RankId) -> int:
        """New pages that a rank could take now."""

    @abstractmethod
    def free_in(self, layout: Layout, rank: RankId) -> int:
        """Free pages of a rank if the group were in `layout`, as things lie now."""

    @abstractmethod
    def lack(self, ordinary: Mapping[RankId, int]) -> dict[RankId, int]:
        """Of so many free ordinary slots on each rank, those that are missing."""

    @abstractmethod
    def ranks(self, page: PageId) -> tuple[RankId, ...]:
        """The ranks that hold a page."""

    @abstractmethod
    def settle(self) -> None:
        """What a switch has left is free at once."""

    @abstractmethod
    def extend(self, sequence: Sequence, tokens: int) -> int:
        """As `grow`, taking slots of copies ahead back as needed."""

    @abstractmethod
    def grow(self, sequence: Sequence, tokens: int) -> int:
        """Allocate pages for the first `tokens` tokens as far as they are free; returns tokens covered."""

    @abstractmethod
    def drop_pages(self, sequence: Sequence) -> None:
        """Give all pages of a sequence back."""

    @abstractmethod
    def copies_per_rank(self, sequence: Sequence) -> list[int]:
        """Pages of the sequence on each rank, `[T]`."""

    @abstractmethod
    def holders(self, sequence: Sequence) -> set[RankId]:
        """Ranks that hold some page of the sequence."""

    def secure(self, sequence: Sequence, tokens: int) -> bool:
        """As `extend`, preempting younger sequences as needed; False when that does not suffice now."""
        while self.extend(sequence, tokens) < tokens:
            ranks = self.placement(sequence).ranks_of_page(sequence.num_pages)
            full = [rank for rank in ranks if self.free(rank) == 0]
            if not self.preempt_younger(sequence, full):
                return False
        return True

    def preempt_younger(self, sequence: Sequence, ranks: Seq[RankId]) -> bool:
        """Preempt the youngest sequence after `sequence` that holds something on one of `ranks`."""
        for victim in reversed(self._roster.within(SeqState.RUNNING, SeqState.LANDED)):
            if victim.precedence <= sequence.precedence:
                return False
            if self.holders(victim).intersection(ranks):
                self.preempt(victim)
                return True
        return False

    def preempt(self, victim: Sequence) -> None:
        """Back to waiting; its tokens are all known, so its KV is computed again later."""
        self.drop_pages(victim)
        victim.state = SeqState.WAITING


@cache
def _num_lanes(layout: Layout, num_ranks: int) -> int:
    ranks = map(RankId, range(num_ranks))
    return len(
        {RULES[layout].placement(num_ranks=num_ranks, owner=rank, rotation=0).owners for rank in ranks}
    )


def spread(placement: KvPlacement, pages: int, num_ranks: int) -> list[int]:
    """How many of a sequence's first `pages` pages its placement puts on each rank, `[T]`."""
    counts = [0] * num_ranks
    if placement.alike:
        for rank in placement.owners:
            counts[rank] = pages
        return counts
    turns = len(placement.owners)
    for index in range(min(turns, pages)):
        # Page `index` and every turns-th after it.
        counts[placement.ranks_of_page(index)[0]] += (pages - index - 1) // turns + 1
    return counts
