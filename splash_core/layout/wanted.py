"""Where placements want pages. Invariant: it does not depend on the order in which sequences come."""

from collections.abc import Container, Iterable, Sequence
from itertools import cycle

from splash_core.ids import PageId, RankId
from splash_core.layout.layout import KvPlacement


def wanted_ranks(
    placed: Iterable[tuple[Sequence[PageId], KvPlacement]], *, skip: Container[PageId] = frozenset()
) -> dict[PageId, tuple[RankId, ...]]:
    """Ranks that shall hold each page, ascending; a page that is shared, on the union.

    Args:
        placed: pages of each sequence in order, and its placement.
        skip: pages to leave out.
    """
    wanted: dict[PageId, tuple[RankId, ...]] = {}
    for pages, placement in placed:
        # A striped sequence goes round its owners.
        turns = [tuple(sorted(placement.ranks_of_page(index))) for index in range(len(placement.owners))]
        found = {page: ranks for page, ranks in zip(pages, cycle(turns), strict=False) if page not in skip}
        for page in wanted.keys() & found.keys():
            found[page] = tuple(sorted({*wanted[page], *found[page]}))
        wanted |= found
    return wanted
