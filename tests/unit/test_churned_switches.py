"""Requests come and go while a switch copies ahead: every step is replayed, no token changes."""

from collections import Counter
from collections.abc import Iterator
from itertools import permutations

import pytest
import torch

from splash_core.attention.context import RankContext
from splash_core.engine.graphs import DecodeGraphs
from splash_core.engine.static_backends import decode_graphs
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import SwitchMode
from tests.conftest import TinyFactory
from tests.support.churned_switches import (
    BUCKETS,
    MOST,
    Churn,
    ChurnedLife,
    WatchedRanks,
    check_bytes,
    check_replayed,
    check_tokens,
    moves_of,
)
from tests.support.fake_gpu import ImmediateGpu
from tests.support.group import Group, arena_with
from tests.support.ranks import WHOLE_PAGES, ThreadRanks
from tests.support.small_model import small_checkpoint


@pytest.fixture(scope="module", params=[None, ImmediateGpu], ids=["on a thread", "on streams"])
def group(tiny_checkpoint: TinyFactory, request: pytest.FixtureRequest) -> Iterator[Group]:
    """Pages are exchanged on a thread, or pulled on stand-ins for streams, which do all when it is issued."""
    torch.set_num_threads(1)
    checkpoint = small_checkpoint(tiny_checkpoint)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=2, page_size=4, elem_bytes=8, ordinary=120)

    def graphs_of(ctx: RankContext) -> DecodeGraphs:
        graphs = decode_graphs(ctx, buckets=BUCKETS)
        for layout in Layout:
            graphs.record(layout)
        return graphs

    ranks = ThreadRanks(checkpoint, arena, graphs_of=graphs_of, gpu=request.param)
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
    assert len(life.tokens) > MOST
    # The request that landed when the switch was due has been copied ahead, too: last pages are left.
    assert len(moves_of(life)) <= MOST


@pytest.mark.parametrize(("before", "after"), list(permutations(Layout, 2)))
def test_what_never_stops_coming_moves_before_replayed_rows(
    group: Group, unswitched: dict[Layout, ChurnedLife], before: Layout, after: Layout
) -> None:
    """In bounded time the switch is made, with a whole request still to move."""
    life = Churn(group, before, after, relentless=True, ahead=True).run()
    check_replayed(life)
    check_tokens(unswitched[before], life)
    check_bytes(life, group.arena)
    assert [event.mode for event in life.switched] == [SwitchMode.PRECOPIED]
    received = Counter(move.dst for move in moves_of(life))
    if before is not Layout.TP and {before, after} & {Layout.CP, Layout.TP}:
        assert max(received.values()) > WHOLE_PAGES, "the path is taken on which layers move one by one"


@pytest.mark.parametrize(("before", "after"), list(permutations(STANDARD_LAYOUTS, 2)))
def test_a_switch_without_copies_ahead_is_replayed_too(
    group: Group, unswitched: dict[Layout, ChurnedLife], before: Layout, after: Layout
) -> None:
    life = Churn(group, before, after, mode=SwitchMode.OVERLAPPED).run()
    check_replayed(life)
    check_tokens(unswitched[before], life)
    check_bytes(life, group.arena)
    assert [event.mode for event in life.switched] == [SwitchMode.OVERLAPPED]
