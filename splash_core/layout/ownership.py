"""Who holds which KV page: one table for all ranks of a group, kept by the group's leader.

Ownership is stored per page, as one copy per holding rank, so layouts, striping, per-request owner sets
and shared prefixes are all the same table. Invariant (`check_integrity`): no slot has two users, no page
has two copies on a rank, and used slots are exactly the copies of live pages and the
copies that a switch makes ahead of itself.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.ahead import RowsToCome, RowToCome
from splash_core.layout.change import OwnershipChange, changed_slots
from splash_core.layout.columns import SlotRows, column
from splash_core.layout.integrity import check_users
from splash_core.layout.layout import Matrices
from splash_core.layout.pages import SlotPool
from splash_core.layout.slots import ArenaMap

NO_SLOT = -1
"""In a row: the rank has no copy of the page."""


@dataclass(frozen=True, slots=True)
class PageCopy:
    """One copy of a page. It is stale once the slot's generation has moved on."""

    rank: RankId
    slot: SlotId
    generation: int


@dataclass(slots=True)
class _Page:
    slots: dict[RankId, SlotId] = field(default_factory=dict[RankId, SlotId])
    references: int = 1
    pins: int = 0


class PageTable:
    """The pages of a group and the slot pools of its ranks."""

    def __init__(self, arena: ArenaMap) -> None:
        self.arena = arena
        self.pools: tuple[SlotPool, ...] = tuple(
            SlotPool(ordinary=arena.ordinary, borrowed=arena.lenders) for _ in range(arena.num_ranks)
        )
        self.ahead = RowsToCome(self.pools)
        self._turning: dict[PageId, RowToCome] = {}
        self._pages: dict[PageId, _Page] = {}
        self._users: tuple[dict[SlotId, PageId], ...] = tuple({} for _ in self.pools)
        self.changes = 0
        """Grows whenever a page comes, goes, moves, or may move from then on or no more."""
        self._next_page = 0

    @property
    def num_ranks(self) -> int:
        """T."""
        return len(self.pools)

    def placed(self, pages: Iterable[PageId], wanted: Iterable[frozenset[RankId]]) -> bool:
        """True when just the ranks `wanted` hold each page, but for pages that are turning."""
        return all(
            page in self._turning or self._pages[page].slots.keys() == ranks
            for page, ranks in zip(pages, wanted, strict=False)
        )

    @property
    def num_pages(self) -> int:
        """Pages that hold slots, quarantined ones included."""
        return len(self._pages)

    @property
    def pages(self) -> tuple[PageId, ...]:
        """All pages that hold slots, in order of creation."""
        return tuple(self._pages)

    def new_page(self, ranks: Sequence[RankId], *, lent: Matrices) -> PageId | None:
        """A page with one reference and a copy on each of `ranks`; None, and no change, if one is full.

        Args:
            ranks: where it goes.
            lent: matrices whose borrowed slots it may lie in.
        """
        if not ranks or len(set(ranks)) != len(ranks):
            raise InvariantBroken(f"a page needs distinct ranks, got {tuple(ranks)}")
        if any(self.free_slots(rank, lent=lent) == 0 for rank in ranks):
            self.settle()
            if any(self.free_slots(rank, lent=lent) == 0 for rank in ranks):
                return None
        page = PageId(self._next_page)
        entry = self._pages[page] = _Page()
        self._next_page += 1
        self.changes += 1
        for rank in sorted(ranks):
            slot = self.pools[rank].allocate(lent=lent)
            assert slot is not None  # free_slots said so
            entry.slots[rank] = slot
            self._users[rank][slot] = page
        return page

    def copies(self, page: PageId) -> tuple[PageCopy, ...]:
        """The page's copies in rank order."""
        slots = self._page(page).slots
        return tuple(
            PageCopy(rank, slots[rank], self.pools[rank].generation(slots[rank])) for rank in sorted(slots)
        )

    def slots(self, page: PageId) -> Mapping[RankId, SlotId]:
        """Where the page's holders have it; to be looked at before the table changes."""
        return self._page(page).slots

    def ranks(self, page: PageId) -> tuple[RankId, ...]:
        """The ranks that hold the page, ascending."""
        return tuple(sorted(self._page(page).slots))

    def row(self, page: PageId) -> tuple[int, ...]:
        """The page's slot on each rank, `[T]`, `NO_SLOT` where it has no copy."""
        slots = self._page(page).slots
        return tuple(slots.get(RankId(rank), NO_SLOT) for rank in range(self.num_ranks))

    def held(self, pages: Collection[PageId]) -> list[Mapping[RankId, SlotId]]:
        """As `slots`, of many pages at once."""
        for page in pages if self._turning else ():
            self._page(page)
        entries = self._pages
        return [entries[page].slots for page in pages]

    def rows(self, pages: Collection[PageId]) -> SlotRows:
        """The rows of many pages at once."""
        ranks = [RankId(rank) for rank in range(self.num_ranks)]
        flat = column([slots.get(rank, NO_SLOT) for slots in self.held(pages) for rank in ranks])
        return SlotRows(self.num_ranks, flat)

    def is_current(self, copy: PageCopy) -> bool:
        """True while the slot still holds what it held when `copy` was made."""
        pool = self.pools[copy.rank]
        return pool.is_used(copy.slot) and pool.generation(copy.slot) == copy.generation

    def user(self, rank: RankId, slot: SlotId) -> PageId | None:
        """The page that has a copy in a slot."""
        self.settle()
        return self._users[rank].get(slot)

    def references(self, page: PageId) -> int:
        """How many users share the page; 0 for one that is quarantined."""
        return self._page(page).references

    def share(self, page: PageId) -> None:
        """One more user of a page."""
        entry = self._page(page)
        if entry.references == 0:
            raise InvariantBroken(f"page {page} is quarantined and cannot be shared")
        entry.references += 1

    def release(self, page: PageId) -> None:
        """One user less. The last one frees the slots, or quarantines them until the last `unpin`."""
        entry = self._page(page)
        if entry.references == 0:
            raise InvariantBroken(f"page {page} is released more often than shared")
        entry.references -= 1
        self._drop_if_unused(page, entry)

    def pin(self, page: PageId) -> None:
        """Someone outside may still write or read the page: it must not move, be freed or be overwritten."""
        self._page(page).pins += 1
        self.changes += 1
        # It stays where it is, so no copy of it is wanted elsewhere.
        self.ahead.drop(page)

    def unpin(self, page: PageId) -> None:
        """Undo one `pin`, on proof that the outside access has ended."""
        entry = self._page(page)
        if entry.pins == 0:
            raise InvariantBroken(f"page {page} is unpinned more often than pinned")
        entry.pins -= 1
        self.changes += 1
        self._drop_if_unused(page, entry)

    def is_pinned(self, page: PageId) -> bool:
        """True while some pin is left."""
        return self._page(page).pins > 0

    @property
    def pinned(self) -> frozenset[PageId]:
        """All pages with a pin left."""
        return frozenset(page for page, entry in self._pages.items() if entry.pins)

    def quarantined(self, rank: RankId) -> int:
        """Slots of a rank that nobody uses but that an outside writer may still reach."""
        self.settle()
        return sum(rank in entry.slots for entry in self._pages.values() if entry.references == 0)

    def free_slots(self, rank: RankId, *, lent: Matrices) -> int:
        """Pages that could still be placed on a rank."""
        return self.pools[rank].free_slots(lent=lent)

    def plan_ahead(self, page: PageId, ranks: Sequence[RankId], *, lent: Matrices) -> RowToCome | None:
        """Give a page a row to come, on `ranks`; None, and no change, if one of them has no room for it."""
        entry = self._page(page)
        if entry.pins:
            raise InvariantBroken(f"page {page} is pinned: it goes nowhere")
        return self.ahead.add(page, entry.slots, ranks, lent=lent)

    def turn(self) -> None:
        """All rows to come are present rows from now on. Slots that pages leave are free after `settle`."""
        self.settle()
        self._turning = self.ahead.take()
        self.changes += 1

    def is_turning(self, page: PageId) -> bool:
        """True for a page that `turn` has given its row to come, until `settle`."""
        return page in self._turning

    def settle(self) -> None:
        """Finish `turn`, which a step must not wait for. Whatever needs it does it before it goes on."""
        for page in tuple(self._turning):
            self._page(page)

    def apply(self, manifest: OwnershipChange) -> None:
        """Record an executed manifest: copies are where it put them, vacated slots are free.

        Generations grow for every slot whose page has left it.

        Raises:
            InvariantBroken: the manifest does not fit this table (and the table is then unusable).
        """
        self.settle()
        self.changes += 1
        # Only slots that the manifest touches are looked at: a relocation must not cost a scan.
        changed = changed_slots(manifest, self._users)
        moved = [page for rank, slots in enumerate(changed) for page in self._vacate(RankId(rank), slots)]
        for rank, slots in enumerate(changed):
            self._place(RankId(rank), {slot: page for slot, page in slots.items() if page is not None})
        if lost := sorted({page for page in moved if not self._pages[page].slots}):
            raise InvariantBroken(f"the manifest leaves no copy of pages {lost}")

    def check_integrity(self) -> None:
        """Prove the invariant of this module.

        Raises:
            InvariantBroken: names the rank, slot or page at fault.
        """
        self.settle()
        check_users({page: e.slots for page, e in self._pages.items()}, self._users, self.pools, self.ahead)
        self.ahead.check_integrity({p: entry.slots for p, entry in self._pages.items() if not entry.pins})
        for page, entry in self._pages.items():
            if not entry.slots or entry.references + entry.pins == 0:
                raise InvariantBroken(f"page {page} has {len(entry.slots)} copies and no user")

    def _page(self, page: PageId) -> _Page:
        entry = self._pages.get(page)
        if entry is None:
            raise InvariantBroken(f"page {page} does not exist (any more)")
        if page in self._turning:
            self._take_row(page, entry)
        return entry

    def _take_row(self, page: PageId, entry: _Page) -> None:
        row = self._turning.pop(page)
        for rank, slot in entry.slots.items():
            if row.slots.get(rank) != slot:
                self.pools[rank].vacate((slot,))
                del self._users[rank][slot]
        for rank in row.made:
            self._users[rank][row.slots[rank]] = page
        entry.slots = dict(row.slots)

    def _drop_if_unused(self, page: PageId, entry: _Page) -> None:
        if entry.references == 0 and entry.pins == 0:
            for rank in sorted(entry.slots):
                self.pools[rank].free((entry.slots[rank],))
                del self._users[rank][entry.slots[rank]]
            del self._pages[page]
            self.changes += 1
            self.ahead.drop(page)

    def _vacate(self, rank: RankId, slots: Iterable[SlotId]) -> list[PageId]:
        """Take those slots of a rank that are in use from their pages, which are returned."""
        users = self._users[rank]
        leaving = [slot for slot in slots if slot in users]
        self.pools[rank].vacate(leaving)
        pages = [users.pop(slot) for slot in leaving]
        for page in pages:
            del self._pages[page].slots[rank]
        self.ahead.drop_all(pages)
        return pages

    def _place(self, rank: RankId, slots: Mapping[SlotId, PageId]) -> None:
        """Give slots of a rank to pages that it does not hold."""
        self.ahead.drop_all(slots.values())
        self.pools[rank].take(slots)
        for slot, page in slots.items():
            held = self._page(page).slots
            if rank in held:
                raise InvariantBroken(f"page {page} twice on rank {rank}: slots {held[rank]}, {slot}")
            held[rank] = slot
        self._users[rank].update(slots)
