"""Copies ahead give way to handoffs, within bounds."""

import pytest

from splash_core.layout.layout import Layout
from splash_core.scheduling.precopy_pace import (
    MOST_YIELDED,
    PATIENCE,
    LinkView,
    PrecopyPace,
    left_by_handoffs,
)
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.support.toy_group import ToyGroup, arena_of


@pytest.mark.parametrize(
    ("view", "left"),
    [
        (LinkView(), 1000),
        (LinkView(rate_bps=1e4, step_s=0.05), 1000),
        (LinkView(rate_bps=1e4, step_s=0.05, pending_bytes=200), 300),
        (LinkView(rate_bps=1e4, step_s=0.05, pending_bytes=500), 62),
        (LinkView(rate_bps=1e6, step_s=0.05, pending_bytes=10**9), 1000),
        (LinkView(rate_bps=1e6, step_s=0.05, pending_bytes=500), 1000),
        (LinkView(rate_bps=0.0, step_s=0.05, pending_bytes=500), 1000),
        (LinkView(rate_bps=1e4, step_s=0.0, pending_bytes=500), 1000),
    ],
)
def test_what_handoffs_leave(view: LinkView, left: int) -> None:
    assert left_by_handoffs(view, most=1000) == left


def test_handoffs_of_a_group_are_shared_by_its_ranks() -> None:
    view = LinkView(rate_bps=1e4, step_s=0.1).shared_with(1001, 2)
    assert (view.pending_bytes, left_by_handoffs(view, most=1000)) == (501, 499)


def test_a_step_copies_what_is_left_and_every_eighth_one_something() -> None:
    pace = PrecopyPace(1000)
    assert pace.take(100) == 10
    pace.free_bytes = 250
    assert [pace.take(100) for _ in range(4)] == [2, 3, 2, 3]
    pace.free_bytes = 40
    assert [pace.take(100) for _ in range(5)] == [0, 0, 1, 0, 1]
    pace.free_bytes = 1
    assert [pace.take(100) for _ in range(2 * PATIENCE)] == [*[0] * (PATIENCE - 1), 1] * 2
    assert pace.yielded == 4 + 5 + 2 * PATIENCE


def test_in_the_end_a_switch_gives_way_no_more() -> None:
    pace = PrecopyPace(1000)
    pace.free_bytes = 1
    for _ in range(MOST_YIELDED):
        assert pace.take(100) <= 1
    assert pace.take(100) == 10


def test_a_unit_larger_than_the_budget_goes_alone() -> None:
    assert PrecopyPace(10).take(100) == 1


@pytest.mark.parametrize(("before", "after"), [(Layout.CP, Layout.TP), (Layout.DOP, Layout.DP)])
def test_a_switch_beside_handoffs_takes_more_steps_and_leaves_no_more(before: Layout, after: Layout) -> None:
    left: list[int] = []
    steps: list[int] = []
    for pushing_bytes in (0, 10**9):
        arena = arena_of(num_ranks=2, ordinary=80, borrowed=4 if before is Layout.DOP else 0)
        group = ToyGroup(layout=before, arena=arena, precopy_bytes_per_step=arena.slot_bytes * 4)
        for length in (16, 20, 12):
            group.add([1 + length % 7] * length, SamplingParams(max_tokens=100))
        group.step()
        group.scheduler.request_switch(after, SwitchMode.PRECOPIED)
        while not group.switched:
            view = LinkView(rate_bps=1e3 * arena.slot_bytes, step_s=1e-3)
            group.scheduler.leave_room(view, pushing_bytes=pushing_bytes)
            group.step()
            assert len(group.plans) < 200
        (event,) = group.switched
        assert event.fallback == ""
        left.append(event.bytes_received)
        steps.append(len(group.plans))
        near = [plan.switch_near for plan in group.plans]
        switching = next(n for n, plan in enumerate(group.plans) if plan.epoch > 0)
        assert any(near[:switching])
        assert not near[switching]
    assert steps[1] > steps[0]
    pages_written = 3 * arena.num_layers * 2
    assert left[1] <= left[0] + pages_written
