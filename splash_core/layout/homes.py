"""Which rank is home to each row of a step: a pure rule that leader and ranks evaluate alike.

The home rank carries a row's residual stream, its FFN dispatch and its sampling. Rows are ordered
*home-major*: all rows of rank 0, then of rank 1, …; inside a rank in the order of the plan. Gathering
home rows in rank order therefore gives this order, without a permutation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from splash_core.ids import RankId
from splash_core.layout.layout import KvHistory
from splash_core.layout.shares import balanced_range


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `first … first+count-1` (offsets inside a sequence's rows of this step) of one sequence."""

    sequence: int
    """Index into the step's sequences."""
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfSequence:
    """What the home rule needs of one sequence's rows."""

    start: int
    """Position of the first row."""
    count: int
    page_holders: tuple[RankId, ...]
    """First holder of each page that the rows touch, from page `start // page_size` on."""


Homes = tuple[tuple[RowRange, ...], ...]
"""Row ranges per home rank."""


def assign_homes(
    history: KvHistory, sequences: Sequence[RowsOfSequence], *, num_ranks: int, page_size: int
) -> Homes:
    """Homes of all rows of a step.

    * OWNER (DP, DOP, DOP-P): home is the owner, so no KV row crosses ranks.
    * ALL (TP): rows are spread evenly, in order.
    * STRIPED (CP): a decode row is at home where its KV row is written, so no KV row crosses ranks;
      a chunk is split zigzag over positions, so that causal work balances (Yang et al., MLSys 2025).

    Args:
        history: the layout's rule for histories.
        sequences: the step's sequences, in plan order.
        num_ranks: T.
        page_size: tokens per page.
    """
    homes: list[list[RowRange]] = [[] for _ in range(num_ranks)]
    if history is KvHistory.ALL:
        _spread_evenly(homes, [rows.count for rows in sequences])
    else:
        for index, rows in enumerate(sequences):
            if history is KvHistory.STRIPED and rows.count > 1:
                _zigzag(homes, index, rows.count)
            else:
                _at_writers(homes, index, rows, page_size)
    return tuple(tuple(ranges) for ranges in homes)


def _spread_evenly(homes: list[list[RowRange]], row_counts: Sequence[int]) -> None:
    total = sum(row_counts)
    bounds = (balanced_range(total, len(homes), rank) for rank in range(len(homes)))
    room = [end - start for start, end in bounds]
    rank = 0
    for index, count in enumerate(row_counts):
        first = 0
        while first < count:
            while room[rank] == 0:
                rank += 1
            taken = min(room[rank], count - first)
            homes[rank].append(RowRange(index, first, taken))
            room[rank] -= taken
            first += taken


def _zigzag(homes: list[list[RowRange]], index: int, count: int) -> None:
    num_ranks = len(homes)
    for piece in range(2 * num_ranks):
        first, end = balanced_range(count, 2 * num_ranks, piece)
        rank = piece if piece < num_ranks else 2 * num_ranks - 1 - piece
        if first < end:
            homes[rank].append(RowRange(index, first, end - first))


def _at_writers(homes: list[list[RowRange]], index: int, rows: RowsOfSequence, page_size: int) -> None:
    first = 0
    while first < rows.count:
        position = rows.start + first
        page = position // page_size - rows.start // page_size
        taken = min(rows.count - first, page_size - position % page_size)
        ranges = homes[rows.page_holders[page]]
        # Neighbouring ranges of one sequence on one rank become one.
        if ranges and ranges[-1].sequence == index and ranges[-1].first + ranges[-1].count == first:
            ranges[-1] = RowRange(index, ranges[-1].first, ranges[-1].count + taken)
        else:
            ranges.append(RowRange(index, first, taken))
        first += taken
