"""Make room for landings: pages that may lie in borrowed slots move there from ordinary ones.

Leases are granted in ordinary slots only, because no switch may touch a leased page. Where projections are
sharded, pages of running sequences can make way. Invariant: every move stays on its rank, from an ordinary
slot to a free borrowed one, so moves do not depend on each other.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from splash_core.ids import Epoch, PageId, RankId
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageTable
from splash_core.switch.evacuation import local_moves
from splash_core.switch.manifest import PageMove, SwitchManifest


def plan_vacating(
    table: PageTable,
    movable: Iterable[PageId],
    wanted: Mapping[RankId, int],
    *,
    layout: Layout,
    epoch: Epoch,
    staging_bytes: int,
) -> SwitchManifest | None:
    """Empty `wanted[rank]` ordinary slots on each rank, or do nothing if some rank cannot.

    Args:
        table: the group's pages.
        movable: pages that nobody outside uses; the first ones move first.
        wanted: ordinary slots to empty.
        layout: the present layout; it must lend its borrowed slots to pages.
        epoch: the present epoch.
        staging_bytes: most bytes that one chunk stages on a rank.
    """
    pages = tuple(movable)
    moves: list[PageMove] = []
    for rank, count in sorted(wanted.items()):
        pool = table.pools[rank]
        held = ((page, copy.slot) for page in pages for copy in table.copies(page) if copy.rank == rank)
        ordinary = ((page, slot) for page, slot in held if not pool.is_borrowed(slot))
        pairs = list(islice(zip(ordinary, pool.free_ids(borrowed=True), strict=False), count))
        if len(pairs) < count:
            return None
        moves.extend(PageMove(page, rank, src, rank, dst) for (page, src), dst in pairs)
    if not moves:
        return None
    return local_moves(moves, arena=table.arena, layout=layout, epoch=epoch, staging_bytes=staging_bytes)
