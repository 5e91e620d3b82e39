"""Copies of pages that a switch makes ahead of itself, while ordinary steps run (docs/model.md §5).

Their slots are taken from the pools, so nobody else gets them, but they are in no page's row, so no
attention sees them. A copy counts only while the slot that it was made from keeps its generation.
Invariant: at most one copy ahead per page and rank, and none of a page that is pinned or gone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.layout import Matrices
from splash_core.layout.pages import PageCopy, SlotPool


@dataclass(frozen=True, slots=True)
class CopyAhead:
    """A copy to come, or one that is made: the step that was planned with it has ended."""

    source: PageCopy
    """What it is made from."""
    slot: SlotId
    """Where it is put."""


class CopiesAhead:
    """All copies ahead of a group.

    Args:
        pools: the slot pools of its ranks.
    """

    def __init__(self, pools: Sequence[SlotPool]) -> None:
        self._pools = pools
        self._copies: tuple[dict[PageId, CopyAhead], ...] = tuple({} for _ in pools)

    def take(self, page: PageId, source: PageCopy, rank: RankId, *, lent: Matrices) -> SlotId | None:
        """Take a slot of `rank` for a copy of `page`; None if there is none."""
        if page in self._copies[rank]:
            raise InvariantBroken(f"page {page} is copied ahead to rank {rank} already")
        slot = self._pools[rank].allocate(lent=lent)
        if slot is not None:
            self._copies[rank][page] = CopyAhead(source, slot)
        return slot

    def has(self, page: PageId, rank: RankId) -> bool:
        """True when `rank` has a copy of the page ahead."""
        return page in self._copies[rank]

    def count(self, rank: RankId) -> int:
        """Copies ahead on a rank."""
        return len(self._copies[rank])

    def slots(self, rank: RankId) -> list[SlotId]:
        """Their slots, oldest first."""
        return [copy.slot for copy in self._copies[rank].values()]

    def drop(self, page: PageId) -> None:
        """Give up all copies of a page."""
        for rank, copies in enumerate(self._copies):
            if page in copies:
                self._pools[rank].free(copies.pop(page).slot)

    def give_back(self, rank: RankId) -> bool:
        """Give up the newest copy on a rank, whose slot is needed now; False if there is none."""
        if not self._copies[rank]:
            return False
        _, copy = self._copies[rank].popitem()
        self._pools[rank].free(copy.slot)
        return True

    def clear(self) -> bool:
        """Give up all copies; False if there was none."""
        taken = self.take_all()
        for _, rank, copy in taken:
            self._pools[rank].free(copy.slot)
        return bool(taken)

    def take_all(self) -> list[tuple[PageId, RankId, CopyAhead]]:
        """Hand all copies over, in rank order, then oldest first; their slots stay in use."""
        taken = [
            (page, RankId(rank), copy)
            for rank, copies in enumerate(self._copies)
            for page, copy in copies.items()
        ]
        for copies in self._copies:
            copies.clear()
        return taken

    def check_integrity(self, pages: Iterable[PageId]) -> None:
        """Prove that all copies are of `pages`.

        Raises:
            InvariantBroken: names a page that is pinned or gone.
        """
        known = set(pages)
        for rank, copies in enumerate(self._copies):
            for page in copies.keys() - known:
                raise InvariantBroken(f"rank {rank} has a copy ahead of page {page}, which is pinned or gone")
