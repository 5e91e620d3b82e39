"""How far ranks are with reading weights. Invariant: what is told is the sum of what all have told so far."""

from collections.abc import Callable

from splash_core.ids import RankId


class LoadingProgress:
    """Sums what ranks report."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        """`tell` hears the bytes that have been read, and those that are going to be."""
        self._tell = tell
        self._ranks: dict[RankId, tuple[int, int]] = {}

    def rank_told(self, rank: RankId, *, done_bytes: int, total_bytes: int) -> None:
        """A rank has come so far."""
        self._ranks[rank] = done_bytes, total_bytes
        done, total = zip(*self._ranks.values(), strict=True)
        self._tell(sum(done), sum(total))
