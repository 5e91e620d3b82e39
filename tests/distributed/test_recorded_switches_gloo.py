"""Replayed steps and switches together, on gloo processes: what GPUs run in `tests/gpu`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from splash_core.layout.layout import Layout
from splash_core.spec.model import ModelSpec
from tests.support.churned_switches import Churn, WatchedRanks, check_bytes, check_replayed, check_tokens
from tests.support.group import Group, arena_with
from tests.support.ranks import ProcessRanks
from tests.support.recorded_switches import BUCKETS, check, live


@pytest.fixture(scope="module")
def group(tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    spec = ModelSpec.from_checkpoint(tiny_v3)
    arena = arena_with(spec, num_ranks=2, page_size=4, elem_bytes=8, ordinary=80)
    ranks = ProcessRanks(tiny_v3, arena, tmp_path_factory.mktemp("recorded"), buckets=BUCKETS)
    yield Group(WatchedRanks(ranks))
    ranks.close()


@pytest.mark.parametrize(("before", "after"), [(Layout.DP, Layout.TP), (Layout.DOP, Layout.CP)])
def test_tokens_over_a_precopied_switch_of_replayed_steps_equal_those_without(
    group: Group, before: Layout, after: Layout
) -> None:
    life = live(group, before, after)
    check(before, after, live(group, before), life)
    assert life.ahead_steps > 0
    assert life.recorded_through == {"GlooComm"}


@pytest.mark.parametrize(("before", "after"), [(Layout.TP, Layout.DOP), (Layout.CP, Layout.DP)])
@pytest.mark.parametrize("relentless", [False, True])
def test_requests_that_come_and_go_change_neither_tokens_nor_replays(
    group: Group, before: Layout, after: Layout, relentless: bool
) -> None:
    life = Churn(group, before, after, relentless=relentless, ahead=True).run()
    check_replayed(life)
    check_tokens(Churn(group, before).run(), life)
    check_bytes(life, group.arena)
