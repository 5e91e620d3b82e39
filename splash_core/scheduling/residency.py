"""Which pages sequences hold: growth by the layout's rule, slots taken back, what lies in borrowed room."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import ORDINARY_ONLY, RULES, Layout, Matrices
from splash_core.layout.ownership import PageTable
from splash_core.scheduling.holding import Holding, Present, spread
from splash_core.scheduling.mirror import MirrorBook
from splash_core.scheduling.sequence import Roster, SeqState, Sequence


class Residency(Holding):
    """Gives pages of a table to sequences and takes them away."""

    def __init__(self, *, table: PageTable, roster: Roster, mirrors: MirrorBook, present: Present) -> None:
        super().__init__(
            roster=roster, present=present, num_ranks=table.num_ranks, page_size=table.arena.page_size
        )
        self.table = table
        self.avoid_borrowed: Matrices = frozenset()
        """Matrices whose borrowed slots take no new page, because a switch waits for them to come free."""
        self.vacated_rest = False
        """True while slots that a manifest under way vacates look used, so that no lease gets one."""
        self.borrowed_used: set[tuple[RankId, SlotId]] = set()
        """Borrowed slots that have held a page at least once."""
        self._mirrors = mirrors
        self._borrowed = frozenset(table.arena.borrowed)

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

    def free_in(self, layout: Layout, rank: RankId) -> int:
        """Free pages of a rank if the group were in `layout`, as things lie now."""
        return self.table.free_slots(rank, lent=RULES[layout].lends)

    def ranks(self, page: PageId) -> tuple[RankId, ...]:
        """The ranks that hold a page."""
        return self.table.ranks(page)

    def settle(self) -> None:
        """What a switch has left is free at once."""
        self.table.settle()

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
                self.note_borrowed_slots(self.table.slots(page).items())

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

    def holders(self, sequence: Sequence) -> set[RankId]:
        """Ranks that hold some page of the sequence."""
        return {rank for page in sequence.pages for rank in self.table.ranks(page)}
