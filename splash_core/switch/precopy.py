"""Copy a switch's state ahead of it: the pure half of the mode `precopied` (docs/model.md §5).

A page that is full never changes again, and weights never change, so ordinary steps can carry them to where
the switch wants them; the switching step then moves only what was written since. Invariant: a batch reads
full pages of sequences that nobody outside uses, and writes slots that no page table shows: so it may run
beside the rows of its step, in any order with them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.ahead import RowToCome
from splash_core.layout.layout import Matrices, Matrix
from splash_core.layout.ownership import PageCopy, PageTable
from splash_core.layout.pages import slot_kinds
from splash_core.switch.manifest import Chunk, PageMove
from splash_core.switch.packing import pack


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecopyBatch:
    """What one ordinary step copies ahead. It is complete on all ranks before the step's result is told.

    Every rank executes weights first, then chunks; after the moves of the step's manifest, if it has one.
    """

    weight_layers: tuple[int, ...] = ()
    """Layers whose missing shards of `gathered` are put into their places."""
    gathered: tuple[Matrix, ...] = ()
    """Matrices to gather, in the order of `Matrix`."""
    chunks: tuple[Chunk, ...] = ()
    """Whole pages, all layers at once."""

    @property
    def moves(self) -> tuple[PageMove, ...]:
        """All page copies."""
        return tuple(move for chunk in self.chunks for move in chunk)


class PageCopies:
    """Gathers page copies for one batch: at most `capacity` into and out of each rank, or one page."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._received: Counter[RankId] = Counter()
        self._sent: Counter[RankId] = Counter()
        self._moves: list[PageMove] = []

    def carries(self, holders: Sequence[PageCopy], ranks: Sequence[RankId]) -> bool:
        """True when the batch has room for the copies that bring a page from its holders to `ranks`."""
        lacking = set(ranks).difference(holder.rank for holder in holders)
        sent = self._sent[self._source(holders).rank]
        # A page for all ranks goes as a whole, even if that is more than a rank's share.
        fits = sent + len(lacking) <= self._capacity or sent == 0
        return fits and all(self._received[rank] < self._capacity for rank in lacking)

    def add(self, page: PageId, holders: Sequence[PageCopy], row: RowToCome) -> None:
        """Carry the copies of a row to come."""
        if not row.made:
            return
        source = self._source(holders)
        self._received.update(row.made)
        self._sent[source.rank] += len(row.made)
        self._moves += [PageMove(page, source.rank, source.slot, rank, row.slots[rank]) for rank in row.made]

    def chunks(self, *, capacity: int) -> tuple[Chunk, ...]:
        """The copies, at most `capacity` of them into and out of each rank in one chunk."""
        return pack(self._moves, capacity=capacity)

    def _source(self, holders: Sequence[PageCopy]) -> PageCopy:
        return min(holders, key=lambda copy: (self._sent[copy.rank], copy.rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHeadroom:
    """A rank that cannot hold second copies, with the numbers that an operator needs."""

    rank: RankId
    needed_slots: int
    free_slots: int
    what: str

    def __str__(self) -> str:
        return f"rank {self.rank} needs {self.needed_slots} free slots for {self.what}, has {self.free_slots}"


def find_headroom(
    table: PageTable, needed: Mapping[RankId, int], *, lent: Matrices, what: str
) -> NoHeadroom | None:
    """The rank that lacks most of the slots that it needs; None when all have room."""
    free = {rank: table.free_slots(rank, lent=lent) for rank in needed}
    worst = max(needed, key=lambda rank: (needed[rank] - free[rank], -rank), default=None)
    if worst is None or needed[worst] <= free[worst]:
        return None
    return NoHeadroom(rank=worst, needed_slots=needed[worst], free_slots=free[worst], what=what)


def plan_clearing(
    table: PageTable, slots: Sequence[SlotId], *, lent: Matrices, capacity: int
) -> tuple[PageMove, ...] | NoHeadroom:
    """Move pages out of slots that weights will fill, to free slots of their ranks.

    Pages that somebody outside uses stay.

    Args:
        table: the group's pages; only read.
        slots: the slots to clear, the same on all ranks.
        lent: matrices whose borrowed slots may take the pages.
        capacity: most moves on each rank.
    """
    moves: list[PageMove] = []
    for rank in (RankId(rank) for rank in range(table.num_ranks)):
        users = ((slot, table.user(rank, slot)) for slot in slots)
        under = [(slot, page) for slot, page in users if page is not None and not table.is_pinned(page)]
        targets = [slot for kind in slot_kinds(lent) for slot in table.pools[rank].free_ids(kind)]
        if len(under) > len(targets):
            return NoHeadroom(
                rank=rank, needed_slots=len(under), free_slots=len(targets), what="pages under its weights"
            )
        pairs = zip(under[:capacity], targets, strict=False)
        moves.extend(PageMove(page, rank, src, rank, dst) for (src, page), dst in pairs)
    return tuple(moves)
