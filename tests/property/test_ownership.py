"""Slot pools and the page table under random lives of pages."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch, PageId, RankId, SlotId
from splash_core.layout.ahead import RowToCome
from splash_core.layout.layout import (
    LENDING_ORDER,
    ORDINARY_ONLY,
    KvMode,
    KvPlacement,
    Layout,
    Matrices,
    Matrix,
)
from splash_core.layout.ownership import NO_SLOT, PageCopy, PageTable
from splash_core.layout.pages import SlotPool
from splash_core.layout.wanted import wanted_ranks
from splash_core.switch.evacuation import local_moves
from splash_core.switch.manifest import PageMove
from tests.support.manifest_simulator import toy_arena

NUM_RANKS = 3
ORDINARY, BORROWED = 5, 3
LENT = st.sets(st.sampled_from(Matrix)).map(frozenset)


def rank_sets(num_ranks: int) -> st.SearchStrategy[list[RankId]]:
    return st.lists(st.sampled_from([RankId(r) for r in range(num_ranks)]), min_size=1, unique=True)


class PoolLife(RuleBasedStateMachine):
    """A pool against a plain model: sets of free and of resting slots, and a count of lives."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.ordinary = {SlotId(slot) for slot in range(10, 14)}
        self.lenders = {Matrix.KV_B: {SlotId(0)}, Matrix.Q_B: {SlotId(1), SlotId(2)}}
        self.borrowed = {slot for slots in self.lenders.values() for slot in slots}
        self.pool = SlotPool(ordinary=self.ordinary, borrowed=self.lenders)
        self.free = self.ordinary | self.borrowed
        self.vacated: set[SlotId] = set()
        self.resting: set[SlotId] = set()
        self.lives: Counter[SlotId] = Counter()

    @rule(target=taken, lent=LENT)
    def allocate(self, lent: Matrices) -> object:
        slot = self.pool.allocate(lent=lent)
        kinds = [
            self.ordinary,
            *(self.lenders.get(matrix, set()) for matrix in LENDING_ORDER if matrix in lent),
        ]
        assert slot == next((min(self.free & slots) for slots in kinds if self.free & slots), None)
        if slot is None:
            return multiple()
        self.free.remove(slot)
        self.vacated.discard(slot)
        return slot

    @precondition(lambda self: self.free)
    @rule(target=taken, data=st.data())
    def take(self, data: st.DataObject) -> SlotId:
        slot = data.draw(st.sampled_from(sorted(self.free)))
        self.pool.take([slot])
        self.free.remove(slot)
        self.vacated.discard(slot)
        with pytest.raises(InvariantBroken, match="in use"):
            self.pool.take([slot])
        return slot

    @rule(slot=consumes(taken), read=st.booleans())
    def give_back(self, slot: SlotId, read: bool) -> None:
        if read:
            self.pool.vacate([slot])
            self.vacated.add(slot)
        else:
            self.pool.free([slot])
        self.free.add(slot)
        self.lives[slot] += 1
        with pytest.raises(InvariantBroken, match="not in use"):
            self.pool.free([slot])

    @rule()
    def rest(self) -> None:
        self.pool.rest()
        self.resting |= self.vacated & self.ordinary
        self.free -= self.resting
        self.vacated.clear()

    @rule()
    def end_rest(self) -> None:
        self.pool.end_rest()
        self.free |= self.resting
        self.resting.clear()
        self.vacated.clear()

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        used = (self.ordinary | self.borrowed) - self.free - self.resting
        assert self.pool.free_ids(None) == tuple(sorted(self.free & self.ordinary))
        assert self.pool.used_borrowed == len(used & self.borrowed)
        assert self.pool.free_slots(lent=frozenset(Matrix)) == len(self.free)
        for matrix in Matrix:
            slots, others = self.lenders.get(matrix, set()), frozenset(Matrix) - {matrix}
            assert self.pool.free_ids(matrix) == tuple(sorted(self.free & slots))
            assert self.pool.all_may_stay(others) == (not used & slots)
            assert {slot for slot in used if not self.pool.may_hold(slot, others)} == used & slots
        assert self.pool.num_used == len(used)
        assert not any(map(self.pool.is_used, self.free | self.resting))
        assert all(self.pool.generation(slot) == self.lives[slot] for slot in self.ordinary | self.borrowed)


@pytest.mark.parametrize("give_back", [SlotPool.free, SlotPool.vacate])
def test_a_slot_given_back_twice_at_once_is_refused(
    give_back: Callable[[SlotPool, list[SlotId]], None],
) -> None:
    pool = SlotPool(ordinary=map(SlotId, range(4)))
    slots = [slot for _ in range(3) if (slot := pool.allocate(lent=ORDINARY_ONLY)) is not None]
    with pytest.raises(InvariantBroken, match=r"slots \[1\] are freed twice at once"):
        give_back(pool, [*slots, SlotId(1)])
    assert pool.num_used == 3
    assert pool.generation(SlotId(1)) == 0
    give_back(pool, slots)
    assert pool.num_used == 0


TestPoolLife = PoolLife.TestCase
TestPoolLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class TableLife(RuleBasedStateMachine):
    """A page table against a plain model: references, pins and the ranks of each page."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PageTable(
            toy_arena(num_ranks=NUM_RANKS, num_layers=2, ordinary=ORDINARY, borrowed=BORROWED)
        )
        self.references: Counter[PageId] = Counter()
        self.pins: Counter[PageId] = Counter()
        self.ranks: dict[PageId, tuple[RankId, ...]] = {}
        self.stale: list[PageCopy] = []
        self.ahead: dict[PageId, RowToCome] = {}

    def pick(self, data: st.DataObject, pages: list[PageId]) -> PageId:
        return data.draw(st.sampled_from(sorted(pages)))

    def drop_if_unused(self, page: PageId, copies: tuple[PageCopy, ...]) -> None:
        if not self.references[page] and not self.pins[page]:
            del self.ranks[page]
            self.stale.extend(copies)

    @rule(ranks=rank_sets(NUM_RANKS), lent=LENT)
    def new_page(self, ranks: list[RankId], lent: Matrices) -> None:
        free = {rank: self.table.free_slots(rank, lent=lent) for rank in ranks}
        page = self.table.new_page(ranks, lent=lent)
        assert (page is None) == (min(free.values()) == 0)
        for rank in ranks:
            left = self.table.free_slots(rank, lent=lent)
            assert left == free[rank] - (page is not None)
        if page is not None:
            self.ranks[page] = tuple(sorted(ranks))
            self.references[page] = 1

    @precondition(lambda self: any(self.references[page] for page in self.ranks))
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = self.pick(data, [page for page in self.ranks if self.references[page]])
        self.table.share(page)
        self.references[page] += 1

    @precondition(lambda self: any(self.references[page] for page in self.ranks))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = self.pick(data, [page for page in self.ranks if self.references[page]])
        copies = self.table.copies(page)
        self.table.release(page)
        self.references[page] -= 1
        self.drop_if_unused(page, copies)

    @precondition(lambda self: self.ranks)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        page = self.pick(data, list(self.ranks))
        self.table.pin(page)
        self.pins[page] += 1

    @precondition(lambda self: any(self.pins[page] for page in self.ranks))
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        page = self.pick(data, [page for page in self.ranks if self.pins[page]])
        copies = self.table.copies(page)
        self.table.unpin(page)
        self.pins[page] -= 1
        self.drop_if_unused(page, copies)

    @precondition(lambda self: self.candidates())
    @rule(data=st.data(), ranks=rank_sets(NUM_RANKS), lent=LENT)
    def plan_ahead(self, data: st.DataObject, ranks: list[RankId], lent: Matrices) -> None:
        page = self.pick(data, self.candidates())
        made = {rank for rank in ranks if rank not in self.ranks[page]}
        full = [rank for rank in made if self.table.free_slots(rank, lent=lent) == 0]
        before = self.table.row(page)
        row = self.table.plan_ahead(page, sorted(ranks), lent=lent)
        assert (row is None) == bool(full)
        assert self.table.row(page) == before, "a present row shows a copy ahead"
        if row is not None:
            assert set(row.made) == made
            assert all(row.slots[rank] == before[rank] for rank in row.slots if rank not in made)
            self.ahead[page] = row

    @rule(rank=st.sampled_from(range(NUM_RANKS)).map(RankId))
    def give_back(self, rank: RankId) -> None:
        newest = [page for page, row in self.ahead.items() if rank in row.made][-1:]
        assert self.table.ahead.give_back(rank) == bool(newest)
        for page in newest:
            del self.ahead[page]

    @precondition(lambda self: self.ranks)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """A manifest puts a page into another slot of its rank."""
        page = self.pick(data, list(self.ranks))
        rank = data.draw(st.sampled_from(self.ranks[page]))
        free = self.table.pools[rank].free_ids(None)
        if not free or self.pins[page]:
            return
        source = next(copy for copy in self.table.copies(page) if copy.rank == rank)
        self.table.apply(
            local_moves(
                [PageMove(page, rank, source.slot, rank, free[-1])],
                arena=self.table.arena,
                layout=Layout.DP,
                epoch=Epoch(0),
                staging_bytes=1 << 20,
            )
        )
        self.stale.append(source)
        assert page not in self.table.ahead, "a row to come outlives the copy that it was made from"
        self.ahead.pop(page, None)

    @rule(data=st.data())
    def turn(self, data: st.DataObject) -> None:
        copies = {page: self.table.copies(page) for page in self.ahead}
        self.table.turn()
        for page, row in self.ahead.items():
            self.ranks[page] = tuple(sorted(row.slots))
            self.stale += [copy for copy in copies[page] if row.slots.get(copy.rank) != copy.slot]
        some = data.draw(st.lists(st.sampled_from(sorted(self.ahead) or [PageId(-1)]), max_size=3))
        for page in self.ahead.keys() & some:
            # Looked at before the rest has settled.
            assert self.table.ranks(page) == self.ranks[page]
        assert all(self.table.is_turning(page) for page in self.ahead.keys() - some)
        rows = {page: row.slots for page, row in self.ahead.items()}
        self.ahead.clear()
        page = self.table.new_page([RankId(0)], lent=ORDINARY_ONLY)
        if page is not None:
            self.ranks[page], self.references[page] = (RankId(0),), 1
        self.table.settle()
        assert all({c.rank: c.slot for c in self.table.copies(page)} == rows[page] for page in rows)

    def candidates(self) -> list[PageId]:
        """Pages that may get a row to come."""
        return [page for page in self.ranks if not self.pins[page] and page not in self.ahead]

    @invariant()
    def agrees(self) -> None:
        self.ahead = {
            page: row for page, row in self.ahead.items() if page in self.ranks and not self.pins[page]
        }
        self.table.check_integrity()
        assert len(self.table.ahead) == len(self.ahead)
        assert self.table.num_pages == len(self.ranks)
        held = Counter(rank for ranks in self.ranks.values() for rank in ranks)
        for rank in (RankId(number) for number in range(NUM_RANKS)):
            slots = [row.slots[rank] for row in self.ahead.values() if rank in row.made]
            assert self.table.ahead.slots(rank) == slots
            assert self.table.ahead.count(rank) == len(slots)
            held[rank] += len(slots)
            free = self.table.free_slots(rank, lent=frozenset(Matrix))
            assert free + held[rank] == ORDINARY + BORROWED
            quarantined = [p for p, ranks in self.ranks.items() if rank in ranks and not self.references[p]]
            assert self.table.quarantined(rank) == len(quarantined)
        for page, ranks in self.ranks.items():
            assert self.table.ranks(page) == ranks
            assert self.table.is_pinned(page) == (self.pins[page] > 0)
            row = self.table.row(page)
            assert [rank for rank, slot in enumerate(row) if slot != NO_SLOT] == list(ranks)
            assert [(c.rank, c.slot) for c in self.table.copies(page)] == [(r, row[r]) for r in ranks]
            assert all(self.table.is_current(copy) for copy in self.table.copies(page))
            assert dict(self.table.slots(page)) == {r: row[r] for r in ranks}
        pages = tuple(self.ranks)
        assert list(self.table.rows(pages)) == [self.table.row(page) for page in pages]
        assert self.table.pinned == {page for page in pages if self.pins[page]}
        assert self.table.placed(pages, [frozenset(ranks) for ranks in self.ranks.values()])
        nowhere: frozenset[RankId] = frozenset()
        assert self.table.placed(pages, [nowhere] * len(pages)) == (not pages)
        assert not any(self.table.is_current(copy) for copy in self.stale)


TestTableLife = TableLife.TestCase
TestTableLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    num_ranks=st.integers(1, 5),
    data=st.data(),
    mode=st.sampled_from(KvMode),
    rotation=st.integers(0, 9),
    length=st.integers(0, 12),
)
def test_placements_place_each_page_on_owners(
    num_ranks: int, data: st.DataObject, mode: KvMode, rotation: int, length: int
) -> None:
    owners = tuple(data.draw(rank_sets(num_ranks)))
    placement = KvPlacement(owners=owners, mode=mode, rotation=rotation)
    pages = [PageId(10 + index) for index in range(length)]
    wanted = wanted_ranks([(pages, placement)])
    assert list(wanted) == pages
    if mode is KvMode.REPLICATED:
        assert all(ranks == tuple(sorted(owners)) for ranks in wanted.values())
        return
    assert all(len(ranks) == 1 and ranks[0] in owners for ranks in wanted.values())
    load = Counter(ranks[0] for ranks in wanted.values())
    assert max(load.values(), default=0) - min((load[owner] for owner in owners), default=0) <= 1


def test_a_shared_page_is_wanted_on_all_its_users_owners() -> None:
    shared, own = PageId(1), PageId(2)
    first = KvPlacement(owners=(RankId(0),), mode=KvMode.STRIPED)
    second = KvPlacement(owners=(RankId(2),), mode=KvMode.STRIPED)
    assert wanted_ranks([([shared], first), ([shared, own], second)]) == {
        shared: (RankId(0), RankId(2)),
        own: (RankId(2),),
    }


def test_misuse_is_reported_as_a_bug() -> None:
    table = PageTable(toy_arena(num_ranks=2, num_layers=1, ordinary=2, borrowed=0))
    page = table.new_page([RankId(0)], lent=ORDINARY_ONLY)
    assert page is not None
    with pytest.raises(InvariantBroken, match="unpinned more often"):
        table.unpin(page)
    with pytest.raises(InvariantBroken, match="distinct ranks"):
        table.new_page([RankId(0), RankId(0)], lent=ORDINARY_ONLY)
    table.pin(page)
    table.release(page)
    with pytest.raises(InvariantBroken, match="more often than shared"):
        table.release(page)
    with pytest.raises(InvariantBroken, match="quarantined"):
        table.share(page)
    table.unpin(page)
    with pytest.raises(InvariantBroken, match="does not exist"):
        table.copies(page)
