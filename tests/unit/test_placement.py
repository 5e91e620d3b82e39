"""Which pair of groups a request goes to."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splash_core.dispatch.admission import Demand, GroupLimits, GroupLoad
from splash_core.dispatch.placement import NoRoom, Pair, Placement, covering, place, place_scoring

DEMAND = Demand(prompt_tokens=10, output_tokens=10, required_output_tokens=30)
LIMITS = GroupLimits(max_model_len=500, max_request_tokens=500)


def group(
    name: str, *, projected: int = 0, pending: int = 0, total: int = 1000, limits: GroupLimits = LIMITS
) -> GroupLoad:
    return GroupLoad(
        address=name,
        group=name,
        limits=limits,
        kv_tokens_total=total,
        kv_tokens_projected=projected,
        sequences=1,
        prompt_tokens_pending=pending,
    )


def cross(prefills: list[GroupLoad], decodes: list[GroupLoad]) -> list[Pair]:
    return [Pair(prefill=prefill, decode=decode) for prefill in prefills for decode in decodes]


def chosen(pairs: list[Pair], rotation: int = 0) -> tuple[str, str | None]:
    placed = place(pairs, DEMAND, rotation=rotation)
    assert isinstance(placed, Placement)
    return placed.prefill, placed.decode


def test_least_projected_decode_and_least_pending_prefill() -> None:
    pairs = cross(
        [group("p0", pending=50), group("p1", pending=5)],
        [group("d0", projected=300), group("d1", projected=100)],
    )
    assert {chosen(pairs, rotation) for rotation in range(4)} == {("p1", "d1")}


def test_use_is_relative_to_size() -> None:
    pairs = cross(
        [group("p0")], [group("d0", projected=300, total=400), group("d1", projected=500, total=1000)]
    )
    assert chosen(pairs) == ("p0", "d1")


def test_ties_rotate() -> None:
    pairs = cross([group(f"p{index}") for index in range(2)], [group(f"d{index}") for index in range(4)])
    decodes = Counter(chosen(pairs, rotation)[1] for rotation in range(40))
    prefills = Counter(chosen(pairs, rotation)[0] for rotation in range(40))
    assert decodes == {f"d{index}": 10 for index in range(4)}
    assert prefills == {"p0": 20, "p1": 20}


def test_full_groups_are_left_out() -> None:
    pairs = cross([group("p0")], [group("d0", projected=985), group("d1", projected=970, total=990)])
    assert chosen(pairs) == ("p0", "d1")


def test_no_room_says_the_numbers() -> None:
    placed = place(cross([group("p0")], [group("d0", projected=990)]), DEMAND, rotation=0)
    assert isinstance(placed, NoRoom)
    assert "990 of 1000" in placed.reason
    assert "20 more" in placed.reason


def test_reason_is_recorded() -> None:
    placed = place(cross([group("p0", pending=7)], [group("d0", projected=3)]), DEMAND, rotation=0)
    assert isinstance(placed, Placement)
    assert placed.reason == "d0 projects 3/1000 KV tokens, p0 has 7 prompt tokens pending"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=5), st.integers(0, 100))
def test_chosen_decode_always_has_room_and_is_least_used(projected: list[int], rotation: int) -> None:
    decodes = [group(f"d{index}", projected=value) for index, value in enumerate(projected)]
    placed = place(cross([group("p0")], decodes), DEMAND, rotation=rotation)
    roomy = [value for value in projected if value + 20 <= 1000]
    if isinstance(placed, NoRoom):
        assert roomy == []
    else:
        assert placed.decode is not None
        assert projected[int(placed.decode[1:])] == min(roomy)


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_a_cover_has_every_group_in_few_pairs_and_depends_on_no_order(
    prefills: int, decodes: int, data: st.DataObject
) -> None:
    all_ = cross([group(f"p{i}") for i in range(prefills)], [group(f"d{i}") for i in range(decodes)])
    pairs = data.draw(st.lists(st.sampled_from(all_), unique=True))
    cover = covering(pairs)
    names = {load.group for pair in cover for load in (pair.prefill, pair.decode)}
    assert names == {load.group for pair in pairs for load in (pair.prefill, pair.decode)}
    assert set(cover) <= set(pairs)
    assert len(cover) == len(set(cover)) < prefills + decodes
    assert covering(pairs[::-1]) == cover
    assert len(covering(all_)) == max(prefills, decodes)


def test_only_given_pairs_are_used() -> None:
    pairs = [Pair(prefill=group("p0", pending=90), decode=group("d0", projected=10))]
    pairs.append(Pair(prefill=group("p1"), decode=group("d1", projected=500)))
    assert chosen(pairs) == ("p0", "d0")


def limited(name: str, *, context: int = 100, held: int = 100) -> GroupLoad:
    return group(name, limits=GroupLimits(max_model_len=context, max_request_tokens=held))


@pytest.mark.parametrize(
    ("prefill", "decode", "holds"),
    [
        (limited("p"), limited("d"), True),
        # Output never comes to prefill: its pool must hold the prompt alone.
        (limited("p", held=10), limited("d"), True),
        (limited("p", held=9), limited("d"), False),
        (limited("p"), limited("d", held=40), True),
        (limited("p"), limited("d", held=39), False),
        (limited("p", context=40), limited("d", context=40), True),
        (limited("p", context=39), limited("d"), False),
        (limited("p"), limited("d", context=39), False),
    ],
)
def test_a_pair_holds_the_prompt_in_prefill_and_all_of_it_in_decode(
    prefill: GroupLoad, decode: GroupLoad, holds: bool
) -> None:
    assert Pair(prefill=prefill, decode=decode).limits.hold(DEMAND) == holds


def test_scoring_takes_the_least_pending_prefill_and_no_decode() -> None:
    loads = [group("p0", pending=9), group("p1", pending=3), group("p2", pending=3)]
    placed = [place_scoring(loads, rotation=rotation) for rotation in range(4)]
    assert [placement.prefill for placement in placed] == ["p1", "p2", "p1", "p2"]
    assert {placement.decode for placement in placed} == {None}
