"""Requests come and go while a switch copies ahead: no step is launched kernel by kernel, no token differs."""

from collections.abc import Iterator
from itertools import permutations

import pytest
import torch

from splash_core.attention.context import RankContext
from splash_core.engine.graphs import DecodeGraphs
from splash_core.engine.static_backends import decode_graphs
from splash_core.layout.layout import Layout
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import SwitchMode
from tests.conftest import TinyFactory
from tests.support.churned_switches import (
    BUCKETS,
    Churn,
    ChurnedLife,
    WatchedRanks,
    check_bytes,
    check_replayed,
    check_tokens,
    switching_step,
)
from tests.support.group import Group, arena_with
from tests.support.ranks import ThreadRanks
from tests.support.small_model import small_checkpoint


@pytest.fixture(scope="module")
def group(tiny_checkpoint: TinyFactory) -> Iterator[Group]:
    torch.set_num_threads(1)
    checkpoint = small_checkpoint(tiny_checkpoint)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=2, page_size=4, elem_bytes=8, ordinary=120)

    def graphs_of(ctx: RankContext) -> DecodeGraphs:
        graphs = decode_graphs(ctx, buckets=BUCKETS)
        for layout in Layout:
            graphs.record(layout)
        return graphs

    ranks = ThreadRanks(checkpoint, arena, graphs_of=graphs_of)
    yield Group(WatchedRanks(ranks))
    ranks.close()


@pytest.fixture(scope="module")
def unswitched(group: Group) -> dict[Layout, ChurnedLife]:
    return {layout: Churn(group, layout).run() for layout in Layout}


@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "one step ahead"])
@pytest.mark.parametrize(("before", "after"), list(permutations(Layout, 2)))
def test_all_steps_around_a_churned_switch_are_replayed(
    group: Group, unswitched: dict[Layout, ChurnedLife], before: Layout, after: Layout, ahead: bool
) -> None:
    life = Churn(group, before, after, ahead=ahead).run()
    check_replayed(life)
    check_tokens(unswitched[before], life)
    check_bytes(life, group.arena)
    (event,) = life.switched
    assert (event.mode, event.fallback) == (SwitchMode.PRECOPIED, "")
    assert life.landed_when_due
