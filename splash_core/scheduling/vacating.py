"""Make room for landings: pages that may lie in borrowed slots move there from ordinary ones.

Leases are granted in ordinary slots only, because no switch may touch a leased page. Where a projection is
sharded, pages of running sequences can make way. Invariant: every move stays on its rank, from an ordinary
slot to a free borrowed one, so moves do not depend on each other.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from splash_core.ids import Epoch, PageId, RankId
from splash_core.layout.layout import Layout, Matrices
from splash_core.layout.ownership import PageTable
from splash_core.layout.pages import slot_kinds
from splash_core.switch.evacuation import local_moves
from splash_core.switch.manifest import PageMove, SwitchManifest


def plan_vacating(
    table: PageTable,
    movable: Iterable[PageId],
    wanted: Mapping[RankId, int],
    *,
    lent: Matrices,
    layout: Layout,
    epoch: Epoch,
    staging_bytes: int,
) -> SwitchManifest | None:
    """Empty `wanted[rank]` ordinary slots on each rank, or do nothing if some rank cannot.

    Args:
        table: the group's pages.
        movable: pages that nobody outside uses; the first ones move first.
        wanted: ordinary slots to empty.
        lent: matrices whose borrowed slots pages may go to.
        layout: the present layout.
        epoch: the present epoch.
        staging_bytes: most bytes that one chunk stages on a rank.
    """
    pages = tuple(movable)
    moves: list[PageMove] = []
    for rank, count in sorted(wanted.items()):
        pool = table.pools[rank]
        held = ((page, copy.slot) for page in pages for copy in table.copies(page) if copy.rank == rank)
        ordinary = ((page, slot) for page, slot in held if not pool.is_borrowed(slot))
        free = (slot for kind in slot_kinds(lent) if kind is not None for slot in pool.free_ids(kind))
        pairs = list(islice(zip(ordinary, free, strict=False), count))
        if len(pairs) < count:
            return None
        moves.extend(PageMove(page, rank, src, rank, dst) for (page, src), dst in pairs)
    if not moves:
        return None
    return local_moves(moves, arena=table.arena, layout=layout, epoch=epoch, staging_bytes=staging_bytes)
