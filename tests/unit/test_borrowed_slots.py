"""Weights borrow slots from the KV pool, with a real engine: capacity, evacuation, refusal with numbers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from splash_core.ids import RequestId
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import RULES, Layout, Matrix
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import SwitchedEvent, TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Refusal
from tests.conftest import TinyFactory
from tests.support.group import Group, arena_with
from tests.support.ranks import ThreadRanks
from tests.support.small_model import small_checkpoint

PAGE = 2
ORDINARY = 10
PROMPT = [5, 9, 200, 31, 77, 4, 18]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: TinyFactory) -> Path:
    torch.set_num_threads(1)
    return small_checkpoint(tiny_checkpoint)


@pytest.fixture(scope="module")
def group(checkpoint: Path) -> Iterator[Group]:
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=2, page_size=PAGE, elem_bytes=8, ordinary=ORDINARY)
    ranks = ThreadRanks(checkpoint, arena)
    yield Group(ranks)
    ranks.close()


def _start(group: Group, layout: Layout, num_requests: int, max_tokens: int) -> None:
    group.reset(layout, SchedulerConfig(role=Role.COMBINED, chunk_tokens=64))
    for index in range(num_requests):
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        group.scheduler.add(RequestId(str(index)), [*PROMPT, index], sampling)


def _finish(group: Group, tokens: dict[str, list[int]]) -> list[SwitchedEvent]:
    switched = []
    while group.scheduler.count():
        for event in group.step():
            if isinstance(event, TokenEvent):
                tokens.setdefault(event.request_id, []).append(event.token)
            elif isinstance(event, SwitchedEvent):
                switched.append(event)
    return switched


def test_dop_holds_exactly_the_borrowed_slots_more_than_dp(group: Group) -> None:
    arena = group.arena
    assert len(arena.borrowed) >= 8
    dop, dp = (Capacity.of(arena, RULES[layout]).distinct_tokens for layout in (Layout.DOP, Layout.DP))
    more = dop - dp
    assert more == len(arena.borrowed) * PAGE * arena.num_ranks


def test_dop_p_holds_less_than_dop_by_the_slots_of_kv_b_alone(group: Group) -> None:
    arena = group.arena
    dp, dop_p, dop = (
        Capacity.of(arena, RULES[layout]).distinct_tokens for layout in (Layout.DP, Layout.DOP_P, Layout.DOP)
    )
    assert dp < dop_p < dop
    assert dop - dop_p == len(arena.lenders[Matrix.KV_B]) * PAGE * arena.num_ranks


@pytest.mark.parametrize("path", [(Layout.DP,), (Layout.DOP_P,), (Layout.DOP_P, Layout.DP)])
def test_pages_in_borrowed_slots_survive_switches_that_need_them(
    group: Group, path: tuple[Layout, ...]
) -> None:
    """Requests fill ordinary slots and all kinds of borrowed ones; two outlive the rest and are evacuated."""
    config = SchedulerConfig(role=Role.COMBINED, layouts=tuple(Layout), chunk_tokens=512)
    expected: dict[str, list[int]] = {}
    _start(group, Layout.DP, 2, 12)
    _finish(group, expected)

    group.reset(Layout.DOP, config)
    for index in range(14):
        # The two requests to survive come last, so that pages of theirs are the ones in borrowed slots.
        survives = index >= 12
        sampling = SamplingParams(temperature=0.0, max_tokens=12 if survives else 6)
        name = str(index - 12) if survives else f"short-{index}"
        group.scheduler.add(RequestId(name), [*PROMPT, index - 12 if survives else 250], sampling)
    tokens: dict[str, list[int]] = {}

    def step() -> list[SwitchedEvent]:
        events = group.step()
        for event in events:
            if isinstance(event, TokenEvent):
                tokens.setdefault(event.request_id, []).append(event.token)
        return [event for event in events if isinstance(event, SwitchedEvent)]

    while group.scheduler.count() > 2:
        step()
    switched: list[SwitchedEvent] = []
    for layout in path:
        lends = RULES[layout].lends
        evacuates = any(not pool.all_may_stay(lends) for pool in group.table.pools)
        assert evacuates or layout is not path[0], "no survivor is in the way: the test proves nothing"
        assert group.scheduler.request_switch(layout) is None
        switched += step()
        assert all(pool.all_may_stay(lends) for pool in group.table.pools)
    _finish(group, tokens)
    assert tuple(event.layout_to for event in switched) == path
    assert {name: tokens[name] for name in expected} == expected
    assert group.scheduler.audit().pages_held == 0


def test_a_switch_that_does_not_fit_is_refused_with_numbers_and_changes_nothing(group: Group) -> None:
    _start(group, Layout.DOP, 8, 6)
    tokens: dict[str, list[int]] = {}
    for _ in range(2):
        for event in group.step():
            if isinstance(event, TokenEvent):
                tokens.setdefault(event.request_id, []).append(event.token)
    before = group.scheduler.audit()
    refusal = group.scheduler.request_switch(Layout.DP)
    assert isinstance(refusal, Refusal)
    assert refusal.needed_slots is not None
    assert refusal.free_slots is not None
    assert refusal.needed_slots > refusal.free_slots
    assert group.scheduler.audit() == before
    assert _finish(group, tokens) == []

    expected: dict[str, list[int]] = {}
    _start(group, Layout.TP, 8, 6)
    _finish(group, expected)
    assert tokens == expected
