"""The difference between what ranks hold and what they are wanted to hold: docs/model.md §2 (2) and (3).

Pages that nobody asked about are wanted where they are. No copy of a pinned page leaves its slot; it may get
further ones. A destination forbids the borrowed slots of the matrices that it replicates: copies there must
leave before weights land on them.
Invariant: each missing copy is read from one holder; holders of a page take turns. A page is looked at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.columns import Column, column, page_column
from splash_core.layout.layout import RULES, Layout, Matrices, Matrix
from splash_core.layout.ownership import PageTable
from splash_core.switch.chunks import Need, SlotKey
from splash_core.switch.manifest import Primitive


@dataclass(frozen=True, slots=True)
class Route:
    """Missing copies that one rank receives from one holder, by page."""

    pages: Column
    slots: Column
    """Where the holder has them."""


Routes = Mapping[tuple[RankId, RankId], Route]
"""By (src, dst); src == dst where copies only have to leave forbidden slots."""


@dataclass(frozen=True, kw_only=True)
class OwnershipDifference:
    """What must move, and what may be overwritten."""

    routes: Routes
    leaving: tuple[Mapping[SlotId, PageId], ...]
    """`[T]`: copies that do not stay in their slots."""
    evacuated: tuple[frozenset[SlotId], ...]
    """`[T]`: of these, the slots whose rank keeps the copy elsewhere."""
    stuck: SlotKey | None
    """A pinned copy in a forbidden slot, if there is one: the switch must be refused."""
    all_may_stay: bool
    """No copy is in a forbidden slot."""
    kv: Primitive

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """One per missing copy, by page."""
        return tuple(
            sorted(
                Need(PageId(page), src, SlotId(slot), dst)
                for (src, dst), route in self.routes.items()
                for page, slot in zip(route.pages, route.slots, strict=True)
            )
        )

    @cached_property
    def unread(self) -> tuple[frozenset[SlotId], ...]:
        """`[T]`: slots whose copy is neither wanted there nor read: free from the start."""
        return tuple(frozenset(self.leaving[rank].keys() - read) for rank, read in enumerate(self._read))

    @cached_property
    def vacated(self) -> tuple[frozenset[SlotId], ...]:
        """`[T]`: slots whose copy leaves the rank once it has been read."""
        return tuple(
            frozenset((self.leaving[rank].keys() & read) - self.evacuated[rank])
            for rank, read in enumerate(self._read)
        )

    @cached_property
    def _read(self) -> tuple[set[int], ...]:
        read: tuple[set[int], ...] = tuple(set[int]() for _ in self.leaving)
        for (src, _), route in self.routes.items():
            read[src].update(route.slots)
        return read


def weight_primitives(layout_from: Layout, layout_to: Layout, *, num_ranks: int) -> dict[Matrix, Primitive]:
    """(2): what supplies each projection: an all-gather where it becomes replicated."""
    before, after = RULES[layout_from], RULES[layout_to]
    primitives = dict.fromkeys(Matrix, Primitive.KEEP)
    if num_ranks > 1:
        primitives |= dict.fromkeys(after.fills - before.fills, Primitive.ALL_GATHER)
        primitives |= dict.fromkeys(before.fills - after.fills, Primitive.DISCARD)
    return primitives


def find_difference(
    table: PageTable,
    wanted: Mapping[PageId, Sequence[RankId]],
    *,
    lent: Matrices,
) -> OwnershipDifference:
    """Compare ownership with what is wanted.

    Args:
        table: who holds what.
        wanted: ranks per page; pages that are left out stay where they are, and pinned ones unless they are
            wanted where they are and elsewhere too.
        lent: matrices whose borrowed slots the destination leaves to pages.
    """
    comparison = _Comparison(table, lent=lent)
    # Where no page has to leave its slot for weights, those that are left out need no look.
    pages = sorted(wanted if comparison.all_may_stay else {*table.pages, *wanted})
    for page, held in zip(pages, table.held(pages), strict=True):
        comparison.look(page, held, wanted.get(page))
    return comparison.outcome()


@dataclass(frozen=True, slots=True)
class _Change:
    """What becomes of the copies of a page: the same for all pages that are held, and wanted, alike."""

    kept: tuple[RankId, ...]
    dropped: tuple[RankId, ...]
    missing: tuple[RankId, ...]
    everywhere: bool
    """Wanted on all ranks."""

    @classmethod
    def of(cls, held: Sequence[RankId], ranks: Sequence[RankId], num_ranks: int) -> "_Change":
        return cls(
            kept=tuple(rank for rank in held if rank in ranks),
            dropped=tuple(rank for rank in held if rank not in ranks),
            missing=tuple(rank for rank in sorted(ranks) if rank not in held),
            everywhere=len(ranks) == num_ranks,
        )


class _Comparison:
    """Looks at pages one after the other."""

    def __init__(self, table: PageTable, *, lent: Matrices) -> None:
        self.all_may_stay = all(pool.all_may_stay(lent) for pool in table.pools)
        self._table = table
        self._lent = lent
        self._pinned = table.pinned
        self._changes: dict[tuple[tuple[RankId, ...], tuple[RankId, ...]], _Change] = {}
        self._routes: dict[tuple[RankId, RankId], Route] = {}
        self._leaving: tuple[dict[SlotId, PageId], ...] = tuple({} for _ in table.pools)
        self._evacuated: tuple[set[SlotId], ...] = tuple(set[SlotId]() for _ in table.pools)
        self._sent = [0] * table.num_ranks
        self._stuck: SlotKey | None = None
        self._to_all = True
        """Pages with missing copies are wanted on all ranks."""

    def look(self, page: PageId, held: Mapping[RankId, SlotId], wanted: Sequence[RankId] | None) -> None:
        """Take a page into account; it stays where it is held if it is wanted nowhere in particular."""
        ranks = tuple(held)
        key = ranks, ranks if wanted is None else tuple(wanted)
        change = self._changes.get(key) or self._change(page, *key)
        if change.dropped and page in self._pinned:
            change = self._change(page, ranks, ranks)
        for rank in change.dropped:
            self._leaving[rank][held[rank]] = page
        if not self.all_may_stay:
            self._clear(page, held, change.kept)
        if change.missing:
            self._to_all = self._to_all and change.everywhere
            for rank in change.missing:
                self._add(self._source(held, change), page, held, rank)

    def outcome(self) -> OwnershipDifference:
        """All that was looked at."""
        return OwnershipDifference(
            routes=dict(sorted(self._routes.items())),
            leaving=self._leaving,
            evacuated=tuple(map(frozenset, self._evacuated)),
            stuck=self._stuck,
            all_may_stay=self.all_may_stay,
            kv=self._primitive(),
        )

    def _change(self, page: PageId, held: tuple[RankId, ...], wanted: tuple[RankId, ...]) -> _Change:
        _check(page, wanted, self._table.num_ranks)
        change = self._changes[held, wanted] = _Change.of(held, wanted, self._table.num_ranks)
        return change

    def _clear(self, page: PageId, held: Mapping[RankId, SlotId], kept: Sequence[RankId]) -> None:
        """Copies that stay on their ranks leave slots that weights will fill."""
        for rank in kept:
            slot = held[rank]
            if self._forbidden(rank, slot):
                self._add(rank, page, held, rank)
                self._leaving[rank][slot] = page
                self._evacuated[rank].add(slot)
                if page in self._pinned and self._stuck is None:
                    self._stuck = rank, slot

    def _add(self, src: RankId, page: PageId, held: Mapping[RankId, SlotId], dst: RankId) -> None:
        route = self._routes.get((src, dst))
        if route is None:
            route = self._routes[src, dst] = Route(page_column(), column())
        route.pages.append(page)
        route.slots.append(held[src])

    def _source(self, held: Mapping[RankId, SlotId], change: _Change) -> RankId:
        """The holder to read from: ordinary slots first, then the least loaded one, then the lowest rank."""

        def preference(rank: RankId) -> tuple[bool, bool, int, RankId]:
            forbidden = not self.all_may_stay and self._forbidden(rank, held[rank])
            # A copy that would otherwise vanish is saved for its readers only if there is no other.
            last_resort = forbidden and rank in change.dropped
            return last_resort, forbidden, self._sent[rank], rank

        source = next(iter(held)) if len(held) == 1 else min(held, key=preference)
        self._sent[source] += 1
        return source

    def _primitive(self) -> Primitive:
        if any(src != dst for src, dst in self._routes):
            return Primitive.ALL_GATHER if self._to_all else Primitive.ALL_TO_ALL
        dropped = sum(map(len, self._leaving)) - sum(map(len, self._evacuated))
        return Primitive.DISCARD if dropped else Primitive.KEEP

    def _forbidden(self, rank: RankId, slot: SlotId) -> bool:
        """True for a slot that the destination's weights will fill."""
        return not self._table.pools[rank].may_hold(slot, self._lent)


def _check(page: PageId, ranks: Sequence[RankId], num_ranks: int) -> None:
    if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= rank < num_ranks for rank in ranks):
        raise InvariantBroken(
            f"page {page} is wanted on {tuple(ranks)}: not distinct ranks below {num_ranks}"
        )
