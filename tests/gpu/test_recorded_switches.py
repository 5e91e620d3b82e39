"""Graphs, collectives over peers' memory and switches together, as requests come and go; T = all GPUs, fp32.

Run with `python -m pytest -m gpu tests/gpu/test_recorded_switches.py`.
"""

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
import torch

from splash_core.layout.layout import Layout
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import SwitchMode
from tests.support.churned_switches import (
    Churn,
    ChurnedLife,
    WatchedRanks,
    check_bytes,
    check_replayed,
    check_tokens,
)
from tests.support.gpus import NUM_GPUS
from tests.support.group import Group, arena_with
from tests.support.ranks import ProcessRanks
from tests.support.recorded_switches import BUCKETS, Life, check, live

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def group(tiny_v3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    assert NUM_GPUS > 0, "torch sees no GPU"
    spec = ModelSpec.from_checkpoint(tiny_v3)
    arena = arena_with(spec, num_ranks=NUM_GPUS, page_size=4, elem_bytes=4, ordinary=120)
    ranks = ProcessRanks(
        tiny_v3,
        arena,
        tmp_path_factory.mktemp("recorded"),
        dtype=torch.float32,
        device="cuda",
        buckets=BUCKETS,
    )
    yield Group(WatchedRanks(ranks))
    ranks.close()


@pytest.fixture(scope="module")
def unswitched(group: Group) -> dict[Layout, Life]:
    return {layout: live(group, layout) for layout in Layout}


@pytest.fixture(scope="module")
def unchurned(group: Group) -> dict[Layout, ChurnedLife]:
    """Without a switch."""
    return {layout: Churn(group, layout).run() for layout in Layout}


@pytest.mark.parametrize(("before", "after"), list(permutations(Layout, 2)))
def test_tokens_over_a_precopied_switch_of_replayed_steps_equal_those_without(
    group: Group, unswitched: dict[Layout, Life], before: Layout, after: Layout
) -> None:
    life = live(group, before, after)
    check(before, after, unswitched[before], life)
    # One rank has no peer whose memory it could read.
    assert life.recorded_through == {"OneShotComm" if NUM_GPUS > 1 else "NcclComm"}


@pytest.mark.parametrize("relentless", [False, True], ids=["come and go", "never stop"])
@pytest.mark.parametrize(("before", "after"), list(permutations(Layout, 2)))
def test_requests_that_come_and_go_change_neither_tokens_nor_replays(
    group: Group, unchurned: dict[Layout, ChurnedLife], before: Layout, after: Layout, relentless: bool
) -> None:
    """The switching step and all around it are replayed, even if a whole request has to move."""
    life = Churn(group, before, after, relentless=relentless, ahead=True).run()
    check_replayed(life)
    check_tokens(unchurned[before], life)
    check_bytes(life, group.arena)


@pytest.mark.parametrize(("before", "after"), list(permutations(Layout, 2)))
def test_all_state_moves_before_a_replayed_step(
    group: Group, unchurned: dict[Layout, ChurnedLife], before: Layout, after: Layout
) -> None:
    life = Churn(group, before, after, mode=SwitchMode.OVERLAPPED, ahead=True).run()
    check_replayed(life)
    check_tokens(unchurned[before], life)
    check_bytes(life, group.arena)
