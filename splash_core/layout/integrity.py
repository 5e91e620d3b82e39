"""What must hold between rows of a page table, the users of slots, and the pools."""

from collections.abc import Mapping, Sequence

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.ahead import RowsToCome
from splash_core.layout.pages import SlotPool


def check_users(
    rows: Mapping[PageId, Mapping[RankId, SlotId]],
    users: Sequence[Mapping[SlotId, PageId]],
    pools: Sequence[SlotPool],
    ahead: RowsToCome,
) -> None:
    """Return if no slot has two users, and the slots in use are those of pages and of copies ahead.

    Args:
        rows: where each page is.
        users: `[T]`: the page in each slot.
        pools: `[T]`.
        ahead: copies that a switch makes ahead of itself.

    Raises:
        InvariantBroken: names the rank at fault.
    """
    found: list[dict[SlotId, PageId]] = [{} for _ in pools]
    for page, row in rows.items():
        for rank, slot in row.items():
            found[rank][slot] = page
    if found != list(users) or sum(map(len, found)) != sum(map(len, rows.values())):
        raise InvariantBroken("a slot has two users, or one that the table does not know")
    for rank, pool in enumerate(pools):
        pool.check_integrity()
        used = [*found[rank], *ahead.slots(RankId(rank))]
        if len(set(used)) != pool.num_used or not all(map(pool.is_used, used)):
            raise InvariantBroken(f"rank {rank}: {pool.num_used} slots in use, {len(used)} held by pages")
