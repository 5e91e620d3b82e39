"""Handoff plans between groups of different T and layout."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash_core.errors import InvariantBroken
from splash_core.ids import RankId, SlotId
from splash_core.layout.ownership import PageCopy
from splash_core.switch.handoff import LandingPage, plan_handoff


def copy(rank: int, slot: int) -> PageCopy:
    return PageCopy(RankId(rank), SlotId(slot), 0)


@st.composite
def handoffs(draw: st.DrawFn) -> tuple[list[tuple[PageCopy, ...]], list[LandingPage], int]:
    source_ranks, landing_ranks = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    first, length, growth = draw(st.integers(0, 3)), draw(st.integers(0, 12)), draw(st.integers(0, 3))
    holders = st.lists(st.integers(0, source_ranks - 1), min_size=1, unique=True)
    targets = st.lists(st.integers(0, landing_ranks - 1), min_size=1, unique=True)
    source = [tuple(copy(rank, index) for rank in sorted(draw(holders))) for index in range(length)]
    landing = [
        LandingPage(index, RankId(rank), SlotId(100 + index))
        for index in range(first + length + growth)
        for rank in draw(targets)
    ]
    return source, draw(st.permutations(landing)), first


@given(handoffs())
def test_every_landing_page_is_written_once_from_a_holder(
    handoff: tuple[list[tuple[PageCopy, ...]], list[LandingPage], int],
) -> None:
    source, landing, first = handoff
    writes = plan_handoff(source, landing, first_index=first)
    pushed = range(first, first + len(source))
    expected = sorted(place for place in landing if place.index in pushed)
    assert [LandingPage(w.index, w.dst, w.dst_slot) for w in writes] == expected
    for write in writes:
        assert (write.src, write.src_slot) in [(c.rank, c.slot) for c in source[write.index - first]]
    assert writes == plan_handoff(source, sorted(landing), first_index=first)


@given(ranks=st.integers(1, 6), pages=st.integers(0, 40))
def test_holders_of_replicated_pages_share_the_work(ranks: int, pages: int) -> None:
    source = [tuple(copy(rank, index) for rank in range(ranks)) for index in range(pages)]
    landing = [LandingPage(index, RankId(0), SlotId(index)) for index in range(pages)]
    together = Counter(write.src for write in plan_handoff(source, landing))
    assert (
        max(together.values(), default=0) - min((together[RankId(r)] for r in range(ranks)), default=0) <= 1
    )
    one_by_one = Counter(
        plan_handoff(source[index : index + 1], landing, first_index=index)[0].src for index in range(pages)
    )
    assert one_by_one == together


def test_pages_without_a_place_or_a_holder_are_bugs() -> None:
    place = LandingPage(0, RankId(0), SlotId(4))
    with pytest.raises(InvariantBroken, match=r"pages \[1\] have no place to land"):
        plan_handoff([(copy(0, 1),), (copy(0, 2),)], [place])
    with pytest.raises(InvariantBroken, match="page 0 has no holder"):
        plan_handoff([()], [place])
    with pytest.raises(InvariantBroken, match="two pages are to land in one slot"):
        plan_handoff([(copy(0, 1),)], [place, LandingPage(1, RankId(0), SlotId(4))])
