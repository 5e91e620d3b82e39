"""A switch's moves as whole pages: the same moves, in few enough transfers, or not at all."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from splash_core.ids import PageId, RankId, SlotId
from splash_core.switch.manifest import Chunk, PageMove
from splash_core.switch.whole_pages import most_pages, whole_page_chunks

RANKS = st.integers(0, 3)
FAR = 1000
"""Slots from here on are free before the switch."""


def move(page: int, src: int, dst: int, *, dst_slot: int | None = None) -> PageMove:
    to = FAR + page if dst_slot is None else dst_slot
    return PageMove(PageId(page), RankId(src), SlotId(page), RankId(dst), SlotId(to))


@given(ends=st.lists(st.tuples(RANKS, RANKS), max_size=60), capacity=st.integers(1, 5))
def test_independent_moves_are_the_same_in_chunks_that_fit(
    ends: list[tuple[int, int]], capacity: int
) -> None:
    chunk = Chunk.of(move(page, src, dst) for page, (src, dst) in enumerate(ends))
    whole = whole_page_chunks((chunk,), capacity=capacity, most=100)
    assert whole is not None
    assert Counter(each for part in whole for each in part) == Counter(chunk)
    assert all(most_pages([part]) <= capacity for part in whole)


def test_more_transfers_than_it_saves_are_not_worth_it() -> None:
    chunks: tuple[Chunk, ...] = (Chunk.of(move(page, 0, 1) for page in range(10)),)
    assert len(whole_page_chunks(chunks, capacity=2, most=5) or ()) == 5
    assert whole_page_chunks(chunks, capacity=2, most=4) is None


def test_slots_that_are_handed_on_stay_in_their_chunk() -> None:
    trade = Chunk.of([move(1, 0, 1, dst_slot=2), move(2, 1, 0, dst_slot=1)])
    assert whole_page_chunks((trade,), capacity=1, most=10) == (trade,), "one transfer reads before it writes"
    longer = Chunk.of([*trade, move(3, 0, 1)])
    assert whole_page_chunks((longer,), capacity=1, most=10) is None


def test_sides_are_counted_apart() -> None:
    assert most_pages([]) == 0
    assert most_pages([Chunk.of([move(1, 0, 1), move(2, 0, 2)]), Chunk.of([move(3, 1, 0)])]) == 2
