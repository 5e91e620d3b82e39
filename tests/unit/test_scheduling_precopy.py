"""Switches that copy ahead, step by step: what is copied when, what the switching step is left with, and
what becomes of the copies when things change meanwhile."""

from collections import Counter

import pytest

from splash_core.errors import Conflict
from splash_core.ids import RankId
from splash_core.layout.layout import ORDINARY_ONLY, Layout
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.events import SwitchedEvent
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Primitive, SwitchMode
from tests.support.toy_group import ToyGroup, arena_of

AHEAD = SwitchMode.PRECOPIED


def output(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count)


def group_in(layout: Layout, arena: ArenaMap, *, pages_a_step: int = 1, **settings: object) -> ToyGroup:
    rate = arena.slot_bytes * pages_a_step
    return ToyGroup(layout=layout, arena=arena, precopy_bytes_per_step=rate, **settings)  # type: ignore[arg-type]


def reserved(group: ToyGroup) -> int:
    return sum(rank.precopied for rank in group.scheduler.audit().ranks)


def until_switched(group: ToyGroup, limit: int = 200) -> SwitchedEvent:
    for _ in range(limit):
        group.step()
        if group.switched:
            return group.switched[-1]
    raise AssertionError("the switch never comes")


def finish(group: ToyGroup) -> None:
    group.run()
    for request in group.requests.values():
        request.check()
        assert request.cancelled or request.finished is not None
    group.assert_empty()


def test_the_switching_step_moves_only_what_was_written_since() -> None:
    group = group_in(Layout.CP, arena_of(num_ranks=2, ordinary=60), pages_a_step=3)
    for length in (8, 11, 5):
        group.add([1 + length] * length, output(30))
    group.step()
    assert group.scheduler.request_switch(Layout.TP, AHEAD) is None
    cached: dict[int, int] = {}
    while group.scheduler.layout is Layout.CP:
        group.begin()
        assert group.plan is not None
        if group.plan.manifest is None:
            # Rows of this step are not in what it copies.
            cached = {step.seq: step.start for step in group.plan.sequences}
        plan = group.plan
        group.end()
    assert (plan.mode, plan.layout) == (AHEAD, Layout.TP)
    assert plan.manifest is not None
    assert plan.num_rows == 3
    # Two pages a step are filled at most, three are copied: so only last pages are left.
    size = group.arena.page_size
    left = sum(-(-(step.start) // size) - cached[step.seq] // size for step in plan.sequences)
    assert 0 < len(plan.manifest.moves) == left <= 6
    (event,) = group.switched
    layers = group.arena.num_layers
    assert event.bytes_received == left * layers
    copied = sum(len(plan.precopy.moves) for plan in group.plans if plan.precopy is not None)
    assert event.precopied_bytes == copied * layers > event.bytes_received
    assert (event.mode, event.fallback, reserved(group)) == (AHEAD, "", 0)
    finish(group)


def test_copies_are_paced_and_balanced() -> None:
    arena = arena_of(num_ranks=3, ordinary=90)
    group = group_in(Layout.DP, arena, pages_a_step=2, staging_bytes=arena.slot_bytes)
    for length in (30, 20, 25):
        group.add([length % 7] * length, output(40))
    group.step()
    group.scheduler.request_switch(Layout.CP, AHEAD)
    until_switched(group)
    batches = [plan.precopy for plan in group.plans if plan.precopy is not None]
    assert len(batches) > 5
    for batch in batches:
        for side in ("src", "dst"):
            assert max(Counter(getattr(move, side) for move in batch.moves).values()) <= 2
            # Staging holds one page.
            assert all(len({getattr(move, side) for move in chunk}) == len(chunk) for chunk in batch.chunks)
    finish(group)


@pytest.mark.parametrize(("before", "after"), [(Layout.DOP, Layout.DP), (Layout.DOP, Layout.CP)])
def test_slots_are_cleared_before_weights_are_gathered_into_them(before: Layout, after: Layout) -> None:
    group = group_in(before, arena_of(num_ranks=2, ordinary=12, borrowed=6), admission_overcommit=4.0)
    for _ in range(4):
        group.add([1] * 9, output(2))
    for number in range(2):
        group.add([2 + number] * 7, output(12))
    for _ in range(3):
        group.step()
    table = group.scheduler._parts.residency.table
    assert any(pool.used_borrowed for pool in table.pools), "the test proves nothing"
    assert group.scheduler.request_switch(after, AHEAD) is None
    event = until_switched(group)
    kinds = []
    for plan in group.plans:
        if plan.manifest is not None and plan.manifest.layout_to is before:
            assert all(move.src == move.dst for move in plan.manifest.moves)
            kinds.append("clear")
        if plan.precopy is not None:
            kinds.append("weights" if plan.precopy.weight_layers else "pages")
        if plan.manifest is not None and plan.manifest.layout_to is after:
            kinds.append("switch")
            assert plan.manifest.weights is Primitive.ALL_GATHER
            assert plan.manifest.ready_layers == (0, 1)
    assert (event.mode, event.fallback) == (AHEAD, "")
    assert {"clear", "weights", "switch"} <= set(kinds)
    assert kinds == sorted(kinds, key=["clear", "weights", "pages", "switch"].index)
    finish(group)


def test_without_headroom_it_falls_back_and_says_the_numbers() -> None:
    group = group_in(Layout.CP, arena_of(num_ranks=2, ordinary=8))
    for number in range(2):
        group.add([5 + number] * 12, output(2))
    group.step()
    # Each rank holds half of either history, so each lacks three pages of the one that it will own.
    assert [rank.free for rank in group.scheduler.audit().ranks] == [2, 2]
    assert group.scheduler.request_switch(Layout.DP, AHEAD) is None
    group.begin()
    assert group.plan is not None
    assert (group.plan.mode, group.plan.precopy) == (SwitchMode.OVERLAPPED, None)
    assert group.plan.layout is Layout.DP
    group.end()
    (event,) = group.switched
    assert event.fallback == "rank 0 needs 3 free slots for second copies of its pages, has 2"
    assert (event.mode, event.precopied_bytes) == (SwitchMode.OVERLAPPED, 0)
    finish(group)


def test_the_present_layout_calls_it_off_and_everything_comes_back() -> None:
    group = group_in(Layout.CP, arena_of(num_ranks=2, ordinary=40))
    group.add([4] * 12, output(20))
    group.step()
    group.scheduler.request_switch(Layout.TP, AHEAD)
    for _ in range(3):
        group.step()
    assert reserved(group) == 6
    with pytest.raises(Conflict, match="TP is scheduled"):
        group.scheduler.request_switch(Layout.DP, AHEAD)
    assert group.scheduler.request_switch(Layout.TP, SwitchMode.OVERLAPPED) is None
    # In the middle of a step: the copies may still be being written.
    group.begin()
    outcome = group.scheduler.request_switch(Layout.CP)
    assert isinstance(outcome, SwitchedEvent)
    assert not group.scheduler.copying_ahead
    assert reserved(group) == 7
    group.end()
    group.step()
    assert reserved(group) == 0
    assert group.scheduler.layout is Layout.CP
    assert all(rank.free + rank.kv == rank.slots for rank in group.scheduler.audit().ranks)
    assert not group.scheduler.snapshot().switch_pending
    finish(group)


def test_called_off_in_favour_of_another_layout() -> None:
    group = group_in(Layout.CP, arena_of(num_ranks=2, ordinary=40))
    group.add([4] * 12, output(20))
    group.step()
    group.scheduler.request_switch(Layout.TP, AHEAD)
    group.step()
    group.begin()
    group.scheduler.request_switch(Layout.CP)
    assert group.scheduler.request_switch(Layout.DP, AHEAD) is None
    group.end()
    event = until_switched(group)
    assert (event.layout_to, event.mode) == (Layout.DP, AHEAD)
    assert event.precopied_bytes > 0
    finish(group)


def test_a_request_that_ends_gives_its_copies_back() -> None:
    group = group_in(Layout.CP, arena_of(num_ranks=2, ordinary=60))
    gone, stays = group.add([4] * 12, output(30)), group.add([5] * 40, output(30))
    group.step()
    group.scheduler.request_switch(Layout.TP, AHEAD)
    for _ in range(3):
        group.step()
    before = reserved(group)
    assert before == 6
    group.begin()
    group.cancel(gone)
    assert reserved(group) == before + 2
    group.end()
    assert group.scheduler.count() == 1
    assert reserved(group) == 0 or reserved(group) < before
    until_switched(group)
    assert len(group.scheduler.copies(stays)) > 0
    finish(group)


def test_growth_takes_the_newest_copies_back_before_anybody_is_preempted() -> None:
    group = group_in(Layout.CP, arena_of(num_ranks=2, ordinary=12))
    old, young = group.add([4] * 14, output(8)), group.add([5], output(9))
    group.step()
    group.scheduler.request_switch(Layout.TP, AHEAD)
    for _ in range(2):
        group.step()
    parts = group.scheduler._parts
    table, sequence = parts.residency.table, parts.roster.get(old)
    held = [table.ahead.slots(RankId(rank)) for rank in range(2)]
    free = [parts.residency.free(RankId(rank)) for rank in range(2)]
    room = (len(sequence.pages) + 2 * min(free) + 2) * group.arena.page_size
    assert parts.residency.secure(sequence, room)
    left = [table.ahead.slots(RankId(rank)) for rank in range(2)]
    assert sum(map(len, left)) < sum(map(len, held))
    assert all(now == then[: len(now)] for now, then in zip(left, held, strict=True))
    assert parts.roster.get(young).state is SeqState.RUNNING
    group.scheduler.check_integrity()


def test_a_copy_counts_only_while_its_source_stays_where_it_was() -> None:
    """Pages that make way for a landing move to borrowed slots: what was copied of them is copied again."""
    group = group_in(
        Layout.DOP, arena_of(num_ranks=2, ordinary=20, borrowed=6), role=Role.DECODE, pages_a_step=1
    )
    grant = group.reserve([1] * 10, output(20))
    assert grant is not None
    group.claim(grant)
    group.write(grant)
    group.land(grant)
    group.step()
    assert group.scheduler.request_switch(Layout.TP, AHEAD) is None
    for _ in range(3):
        group.step()
    table = group.scheduler._parts.residency.table
    assert sum(table.ahead.count(RankId(rank)) for rank in range(2)) == 3
    sequence = group.scheduler._parts.roster.get(grant.seq)
    rank = sequence.owner
    group.scheduler._parts.residency.wanted_ordinary = {rank: table.free_slots(rank, lent=ORDINARY_ONLY) + 2}
    group.begin()
    assert group.plan is not None
    assert group.plan.manifest is not None
    moved = {move.page for move in group.plan.manifest.moves}
    assert moved
    assert moved <= set(sequence.pages[:3])
    assert group.plan.precopy is not None
    group.end()
    event = until_switched(group)
    switch = group.plans[-1].manifest
    assert switch is not None
    assert moved <= {move.page for move in switch.moves}
    assert event.mode is AHEAD
    finish(group)


def test_the_switching_step_comes_however_fast_pages_fill() -> None:
    group = group_in(Layout.CP, arena_of(num_ranks=2, ordinary=900, page_size=1), max_running=16)
    for number in range(12):
        group.add([number % 7] * 4, output(60))
    group.step()
    group.scheduler.request_switch(Layout.TP, AHEAD)
    # 24 copies into each rank at one a step are planned for; twelve pages are filled in each step.
    event = until_switched(group, limit=2 * 24 + 10)
    assert event.mode is AHEAD
    assert event.bytes_received > event.precopied_bytes > 0
    finish(group)


def test_an_idle_group_copies_weights_ahead_without_rows() -> None:
    group = group_in(Layout.TP, arena_of(num_ranks=2, ordinary=8, borrowed=4))
    group.scheduler.request_switch(Layout.CP, AHEAD)
    group.run()
    # One layer's weights are more than a step's share, so each step gathers one.
    assert [plan.precopy and plan.precopy.weight_layers for plan in group.plans] == [(0,), (1,), None]
    assert not any(plan.num_rows for plan in group.plans)
    assert group.plans[-1].manifest is not None
    assert group.plans[-1].manifest.ready_layers == (0, 1)
    assert group.switched[0].layout_to is group.scheduler.layout is Layout.CP


def test_a_switch_that_fits_no_longer_is_refused_and_leaves_nothing_behind() -> None:
    group = group_in(Layout.DP, arena_of(num_ranks=2, ordinary=8), role=Role.DECODE, admission_overcommit=4.0)
    first = group.reserve([1] * 5, output(6))
    assert first is not None
    for action in (group.claim, group.write, group.land):
        action(first)
    group.step()
    assert group.scheduler.request_switch(Layout.TP, AHEAD) is None
    group.step()
    assert reserved(group) == 1
    late = [group.reserve([2] * length, output(1)) for length in (6, 6, 6, 3, 3, 1, 1)]
    for _ in range(20):
        group.step()
        if group.refused:
            break
    assert group.refused
    assert reserved(group) == 0
    assert group.scheduler.layout is Layout.DP
    for grant in late:
        if grant is not None:
            group.cancel(grant.seq)
    finish(group)


def test_page_tables_never_show_a_copy_before_the_switch() -> None:
    group = group_in(Layout.DP, arena_of(num_ranks=2, ordinary=40))
    seq = group.add([4] * 12, output(20))
    group.step()
    group.scheduler.request_switch(Layout.TP, AHEAD)
    group.step()
    assert reserved(group) > 0
    assert all(len(page) == 1 for page in group.scheduler.copies(seq))
    assert group.scheduler.audit().ranks[0].kv == len(group.scheduler.copies(seq)) or (
        group.scheduler.audit().ranks[1].kv == len(group.scheduler.copies(seq))
    )
    until_switched(group)
    assert all(len(page) == 2 for page in group.scheduler.copies(seq))
    finish(group)
