"""Copies made ahead of a switch, as numbers: `layout.ahead.RowsToCome` without slots.

Invariant: `on_rank` counts on each rank the copies whose rows to come stand; a row stands or goes as a whole.
"""

from collections.abc import Sequence as Seq

from splash_core.ids import RankId, SeqId

Page = tuple[SeqId, int]
"""A sequence and the index of a page of it."""


class CopiesAhead:
    """All rows to come of a group."""

    def __init__(self, num_ranks: int) -> None:
        self.on_rank = [0] * num_ranks
        """Pages that copies made ahead take on each rank."""
        self._rows: dict[SeqId, dict[int, tuple[RankId, ...]]] = {}
        self._made: tuple[dict[Page, None], ...] = tuple({} for _ in range(num_ranks))
        """On each rank, oldest first."""

    @property
    def stand(self) -> bool:
        """True when there is a row to come."""
        return bool(self._rows)

    def add(self, seq: SeqId, index: int, made: Seq[RankId]) -> None:
        """A page has a row to come; copies of it are made on some ranks (or on none)."""
        self._rows.setdefault(seq, {})[index] = tuple(made)
        for rank in made:
            self._made[rank][seq, index] = None
            self.on_rank[rank] += 1

    def drop(self, seq: SeqId) -> None:
        """Give up the rows to come of a sequence."""
        for index in tuple(self._rows.get(seq, ())):
            self._drop_page(seq, index)

    def give_back(self, rank: RankId) -> bool:
        """Give up the newest row that has taken a page of `rank`; False if none has."""
        page = next(reversed(self._made[rank]), None)
        if page is None:
            return False
        self._drop_page(*page)
        return True

    def take(self) -> dict[SeqId, list[int]]:
        """Give up all; of each sequence, how many copies were made on each rank, `[T]`."""
        taken: dict[SeqId, list[int]] = {}
        for seq, pages in self._rows.items():
            counts = taken[seq] = [0] * len(self.on_rank)
            for made in pages.values():
                for rank in made:
                    counts[rank] += 1
        self._rows.clear()
        for made in self._made:
            made.clear()
        self.on_rank = [0] * len(self.on_rank)
        return taken

    def _drop_page(self, seq: SeqId, index: int) -> None:
        pages = self._rows[seq]
        for rank in pages.pop(index):
            del self._made[rank][seq, index]
            self.on_rank[rank] -= 1
        if not pages:
            del self._rows[seq]
