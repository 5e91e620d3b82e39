"""Rows to come: where pages will be after a switch that copies ahead of itself (docs/model.md §5).

A page's row to come names a slot on each rank that will hold it: slots of copies that it has, and slots
for copies that are made ahead. Those are taken from the pools, so nobody else gets them, and the page's
present row does not show them, so no attention sees them. Invariant: a row to come stands only as long as
each copy of its page stays in its slot; it goes when one leaves, and when the page is pinned or gone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.layout import Matrices
from splash_core.layout.pages import SlotPool


@dataclass(frozen=True, slots=True)
class RowToCome:
    """Where one page will be."""

    slots: Mapping[RankId, SlotId]
    made: tuple[RankId, ...]
    """Ranks whose copy is made ahead. It is complete once the step has ended that was planned with it."""


class RowsToCome:
    """All rows to come of a group.

    Args:
        pools: the slot pools of its ranks.
    """

    def __init__(self, pools: Sequence[SlotPool]) -> None:
        self._pools = pools
        self._rows: dict[PageId, RowToCome] = {}
        self._made: tuple[dict[PageId, None], ...] = tuple({} for _ in pools)
        """On each rank, pages with a copy made ahead, oldest first."""

    def __contains__(self, page: PageId) -> bool:
        return page in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, page: PageId, held: Mapping[RankId, SlotId], ranks: Sequence[RankId], *, lent: Matrices
    ) -> RowToCome | None:
        """Take slots for a page on those of `ranks` that lack it; None, and no change, if one has no room.

        Args:
            page: the page, which has no row to come yet.
            held: its present row.
            ranks: who will hold it.
            lent: matrices whose borrowed slots copies may lie in.
        """
        if page in self._rows:
            raise InvariantBroken(f"page {page} has a row to come already")
        made = tuple(rank for rank in ranks if rank not in held)
        if any(self._pools[rank].free_slots(lent=lent) == 0 for rank in made):
            return None
        slots: dict[RankId, SlotId] = {}
        for rank in ranks:
            slot = held[rank] if rank in held else self._pools[rank].allocate(lent=lent)
            assert slot is not None  # free_slots said so
            slots[rank] = slot
        for rank in made:
            self._made[rank][page] = None
        row = self._rows[page] = RowToCome(slots, made)
        return row

    def count(self, rank: RankId) -> int:
        """Slots of a rank that are taken for copies ahead."""
        return len(self._made[rank])

    def slots(self, rank: RankId) -> list[SlotId]:
        """Those slots, oldest first."""
        return [self._rows[page].slots[rank] for page in self._made[rank]]

    def drop(self, page: PageId) -> None:
        """Give up a page's row to come, if it has one."""
        row = self._rows.pop(page, None)
        if row is not None:
            for rank in row.made:
                del self._made[rank][page]
                self._pools[rank].free((row.slots[rank],))

    def drop_all(self, pages: Iterable[PageId]) -> None:
        """Give up the rows to come of pages that have moved."""
        for page in pages if self._rows else ():
            self.drop(page)

    def give_back(self, rank: RankId) -> bool:
        """Give up the newest row that has taken a slot of `rank`, which is needed now; False if none has."""
        page = next(reversed(self._made[rank]), None)
        if page is None:
            return False
        self.drop(page)
        return True

    def clear(self) -> bool:
        """Give up all rows to come; False if there was none."""
        pages = tuple(self._rows)
        for page in pages:
            self.drop(page)
        return bool(pages)

    def take(self) -> dict[PageId, RowToCome]:
        """Hand all rows over; their slots stay in use."""
        rows, self._rows = self._rows, {}
        for made in self._made:
            made.clear()
        return rows

    def check_integrity(self, present: Mapping[PageId, Mapping[RankId, SlotId]]) -> None:
        """Prove the invariant of this module.

        Args:
            present: rows of all pages that are not pinned.

        Raises:
            InvariantBroken: names the page at fault.
        """
        for page, row in self._rows.items():
            if page not in present:
                raise InvariantBroken(f"page {page} has a row to come, but is pinned or gone")
            kept = {rank: slot for rank, slot in row.slots.items() if rank not in row.made}
            if not kept.items() <= present[page].items() or present[page].keys() & row.made:
                raise InvariantBroken(f"page {page} has moved, but its row to come stands")
