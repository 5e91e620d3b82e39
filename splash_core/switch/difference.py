"""The difference between what ranks hold and what they are wanted to hold: docs/model.md §2 (2) and (3).

Pages that nobody asked about are wanted where they are. No copy of a pinned page leaves its slot; it may get
further ones. A destination forbids the borrowed slots of the matrices that it replicates: copies there must
leave before weights land on them.
Invariant: each missing copy is one `Need` with one holder as its source; holders of a page take turns.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.layout import RULES, Layout, Matrices, Matrix
from splash_core.layout.ownership import PageTable
from splash_core.switch.chunks import Need, SlotKey
from splash_core.switch.manifest import Primitive


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What must move, and what may be overwritten."""

    needs: tuple[Need, ...]
    """One per missing copy; src == dst where a copy only has to leave a forbidden slot."""
    leaving: Mapping[SlotKey, PageId]
    """Copies that do not stay in their slots."""
    unread: frozenset[SlotKey]
    """Slots whose copy is neither wanted there nor read: free from the start."""
    vacated: frozenset[SlotKey]
    """Slots whose copy leaves once it has been read."""
    stuck: SlotKey | None
    """A pinned copy in a forbidden slot, if there is one: the switch must be refused."""
    kv: Primitive


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
) -> Difference:
    """Compare ownership with what is wanted.

    Args:
        table: who holds what.
        wanted: ranks per page; pages that are left out stay where they are, and pinned ones unless they are
            wanted where they are and elsewhere too.
        lent: matrices whose borrowed slots the destination leaves to pages.
    """
    sources = _Sources(table, lent=lent)
    needs: list[Need] = []
    leaving: dict[SlotKey, PageId] = {}
    dropped: set[SlotKey] = set()
    stuck: SlotKey | None = None
    missing_from_all: list[bool] = []
    for page in sorted(wanted if sources.all_slots_allowed else {*table.pages, *wanted}):
        held = {copy.rank: copy.slot for copy in table.copies(page)}
        pinned = table.is_pinned(page)
        ranks = _checked(page, wanted.get(page, tuple(held)), table.num_ranks)
        if pinned and not held.keys() <= set(ranks):
            ranks = tuple(held)
        for rank, slot in held.items():
            if rank not in ranks:
                dropped.add((rank, slot))
                leaving[rank, slot] = page
            elif sources.forbidden(rank, slot):
                needs.append(Need(page, rank, slot, rank))
                leaving[rank, slot] = page
                stuck = (rank, slot) if pinned and stuck is None else stuck
        missing = [rank for rank in ranks if rank not in held]
        needs.extend(Need(page, *sources.choose(held, ranks), rank) for rank in missing)
        if missing:
            missing_from_all.append(len(ranks) == table.num_ranks)
    read = {need.source for need in needs}
    return Difference(
        needs=tuple(needs),
        leaving=leaving,
        unread=frozenset(dropped - read),
        vacated=frozenset(dropped & read),
        stuck=stuck,
        kv=_kv_primitive(missing_from_all, discards=bool(dropped)),
    )


class _Sources:
    """Chooses holders: ordinary slots first, then the least loaded one, then the lowest rank."""

    def __init__(self, table: PageTable, *, lent: Matrices) -> None:
        self._table = table
        self._lent = lent
        self._sent: Counter[RankId] = Counter()

    @property
    def all_slots_allowed(self) -> bool:
        """True when no page has to leave its slot for the weights: then pages left out need no look."""
        return all(pool.all_may_stay(self._lent) for pool in self._table.pools)

    def forbidden(self, rank: RankId, slot: SlotId) -> bool:
        """True for a slot that the destination's weights will fill."""
        return not self._table.pools[rank].may_hold(slot, self._lent)

    def choose(self, held: Mapping[RankId, SlotId], ranks: Sequence[RankId]) -> SlotKey:
        """The holder that the next missing copy is read from."""

        def preference(rank: RankId) -> tuple[bool, bool, int, RankId]:
            forbidden = self.forbidden(rank, held[rank])
            # A copy that would otherwise vanish is saved for its readers only if there is no other.
            last_resort = forbidden and rank not in ranks
            return last_resort, forbidden, self._sent[rank], rank

        source = min(held, key=preference)
        self._sent[source] += 1
        return source, held[source]


def _checked(page: PageId, ranks: Sequence[RankId], num_ranks: int) -> tuple[RankId, ...]:
    if not ranks or len(set(ranks)) != len(ranks) or not all(0 <= rank < num_ranks for rank in ranks):
        raise InvariantBroken(
            f"page {page} is wanted on {tuple(ranks)}: not distinct ranks below {num_ranks}"
        )
    return tuple(sorted(ranks))


def _kv_primitive(missing_from_all: Sequence[bool], *, discards: bool) -> Primitive:
    if not missing_from_all:
        return Primitive.DISCARD if discards else Primitive.KEEP
    return Primitive.ALL_GATHER if all(missing_from_all) else Primitive.ALL_TO_ALL
