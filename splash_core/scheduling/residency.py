"""Which pages sequences hold: growth by the layout's rule, and preemption when a rank is full.

Precedence is age: only a younger sequence is ever preempted for an older one. So the oldest sequence
always gets what it needs, as soon as pages in use outside the group come back, and every sequence that
was admitted finishes.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from splash_core.ids import Epoch, PageId, RankId, SlotId
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import ORDINARY_ONLY, RULES, KvPlacement, Layout, LayoutRule, Matrices
from splash_core.layout.ownership import PageTable
from splash_core.scheduling.mirror import Mirrors
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


class Residency:
    """Gives pages to sequences and takes them away."""

    def __init__(self, *, table: PageTable, roster: Roster, mirrors: Mirrors, present: Present) -> None:
        self.table = table
        self.avoid_borrowed: Matrices = frozenset()
        """Matrices whose borrowed slots take no new page, because a switch waits for them to come free."""
        self.wanted_ordinary: dict[RankId, int] = {}
        """Free ordinary slots on each rank that a landing waits for."""
        self.vacated_rest = False
        """True while slots that a manifest under way vacates look used, so that no lease gets one."""
        self.borrowed_used: set[tuple[RankId, SlotId]] = set()
        """Borrowed slots that have held a page at least once."""
        self._roster = roster
        self._mirrors = mirrors
        self._present = present
        self._borrowed = frozenset(table.arena.borrowed)

    @property
    def num_ranks(self) -> int:
        """T."""
        return self.table.num_ranks

    @property
    def lent(self) -> Matrices:
        """Matrices whose borrowed slots new pages may lie in."""
        return self._present.rule.lends - self.avoid_borrowed

    def tidy(self, *, moving: bool) -> None:
        """Book-keeping after a step was sent, or has ended; `moving`: a manifest is under way."""
        self.table.settle()
        for pool in self.table.pools:
            if moving:
                pool.rest()
            else:
                pool.end_rest()
        self.vacated_rest = moving

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill."""
        return -(-tokens // self.table.arena.page_size)

    def capacity(self, layout: Layout) -> Capacity:
        """What the pools of all ranks hold in a layout."""
        return Capacity.of(self.table.arena, RULES[layout])

    def free(self, rank: RankId) -> int:
        """New pages that a rank could take now."""
        return self.table.free_slots(rank, lent=self.lent)

    def lack(self, ordinary: Mapping[RankId, int]) -> dict[RankId, int]:
        """Of so many free ordinary slots on each rank, those that are missing."""
        lack = {
            rank: count - self.table.free_slots(rank, lent=ORDINARY_ONLY) for rank, count in ordinary.items()
        }
        return {rank: count for rank, count in lack.items() if count > 0}

    def placement(self, sequence: Sequence) -> KvPlacement:
        """Where the present layout puts the sequence's pages."""
        return self._present.rule.placement(
            num_ranks=self.num_ranks, owner=sequence.owner, rotation=sequence.rotation
        )

    def extend(self, sequence: Sequence, tokens: int) -> int:
        """As `grow`, taking slots of copies ahead back as needed."""
        while (covered := self.grow(sequence, tokens)) < tokens:
            if not self._take_back(self.placement(sequence).ranks_of_page(len(sequence.pages))):
                break
        return covered

    def grow(self, sequence: Sequence, tokens: int) -> int:
        """Allocate pages for the first `tokens` tokens as far as they are free; returns tokens covered.

        It takes nothing away, so steps may be under way.
        """
        size = self.table.arena.page_size
        if tokens <= len(sequence.pages) * size:
            return tokens
        placement = self.placement(sequence)
        while len(sequence.pages) * size < tokens:
            ranks = placement.ranks_of_page(len(sequence.pages))
            page = self.table.new_page(ranks, lent=self.lent)
            if page is None:
                break
            sequence.pages.append(page)
            self.note_borrowed((page,))
        return min(tokens, len(sequence.pages) * size)

    def _take_back(self, ranks: Seq[RankId]) -> bool:
        """Slots of copies ahead give way to new pages; False when some full rank has none."""
        full = [rank for rank in ranks if self.free(rank) == 0]
        return all(self.table.ahead.give_back(rank) for rank in full)

    def secure(self, sequence: Sequence, tokens: int) -> bool:
        """As `extend`, preempting younger sequences as needed; False when that does not suffice now."""
        while self.extend(sequence, tokens) < tokens:
            ranks = self.placement(sequence).ranks_of_page(len(sequence.pages))
            full = [rank for rank in ranks if self.free(rank) == 0]
            if not self.preempt_younger(sequence, full):
                return False
        return True

    def preempt_younger(self, sequence: Sequence, ranks: Seq[RankId]) -> bool:
        """Preempt the youngest sequence after `sequence` that holds something on one of `ranks`."""
        for victim in reversed(self._roster.within(SeqState.RUNNING, SeqState.LANDED)):
            if victim.seq <= sequence.seq:
                return False
            held = {rank for page in victim.pages for rank in self.table.ranks(page)}
            if held.intersection(ranks):
                self.preempt(victim)
                return True
        return False

    def preempt(self, victim: Sequence) -> None:
        """Back to waiting; its tokens are all known, so its KV is computed again later."""
        self.drop_pages(victim)
        victim.state = SeqState.WAITING

    def drop_pages(self, sequence: Sequence) -> None:
        """Give all pages back (pinned ones stay quarantined until unpinned) and forget the ranks' mirror."""
        for page in sequence.pages:
            self.table.release(page)
        sequence.pages.clear()
        sequence.cached = 0
        self.forget_mirror(sequence)

    def forget_mirror(self, sequence: Sequence) -> None:
        """The ranks need not know the sequence any more (for now)."""
        self._mirrors.drop(sequence.seq)

    def note_borrowed(self, pages: Seq[PageId]) -> None:
        """Record which borrowed slots hold pages."""
        if not any(pool.used_borrowed for pool in self.table.pools):
            return
        for page in pages:
            if not self.table.is_turning(page):  # else noted when its row to come was made
                self.note_borrowed_slots((copy.rank, copy.slot) for copy in self.table.copies(page))

    def note_borrowed_slots(self, slots: Iterable[tuple[RankId, SlotId]]) -> None:
        """Record which of these slots, which hold pages, are borrowed."""
        self.borrowed_used.update((rank, slot) for rank, slot in slots if slot in self._borrowed)

    def copies_per_rank(self, sequence: Sequence) -> list[int]:
        """Pages of the sequence on each rank, `[T]`."""
        if sequence.state is SeqState.RUNNING:
            # In place, so the rule knows.
            return spread(self.placement(sequence), len(sequence.pages), self.num_ranks)
        counts = [0] * self.num_ranks
        for page in sequence.pages:
            for rank in self.table.ranks(page):
                counts[rank] += 1
        return counts


def spread(placement: KvPlacement, pages: int, num_ranks: int) -> list[int]:
    """How many of a sequence's first `pages` pages its placement puts on each rank, `[T]`."""
    counts = [0] * num_ranks
    turns = len(placement.owners)
    for index in range(min(turns, pages)):
        ranks = placement.ranks_of_page(index)
        for rank in ranks:
            # Striped: page `index` and every turns-th after it. Replicated: every page, counted once.
            if len(ranks) == 1:
                counts[rank] += (pages - index - 1) // turns + 1
            else:
                counts[rank] = pages
    return counts
