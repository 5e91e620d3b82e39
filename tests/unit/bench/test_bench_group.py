"""The planning half of a benchmark: histories in place, rows over them, switches, and back again."""

import itertools

import pytest

from services.bench.group import BenchGroup
from services.bench.shapes import bench_spec
from services.bench.sweep import owner_rows
from splash_core.errors import Infeasible
from splash_core.ids import RankId, SeqId
from splash_core.layout.layout import RULES, Layout
from splash_core.switch.manifest import Primitive, SwitchMode
from tests.support.group import arena_with

SPEC = bench_spec("tiny")
BATCH, HISTORY, PAGE = 4, 22, 4


def group(layout: Layout, *, num_ranks: int = 2, ordinary: int = 60) -> BenchGroup:
    arena = arena_with(SPEC, num_ranks=num_ranks, page_size=PAGE, elem_bytes=4, ordinary=ordinary)
    return BenchGroup(SPEC, arena, layout, staging_bytes=1 << 28)


def assert_in_place(bench: BenchGroup) -> None:
    """Every page lies where the layout's rule wants it."""
    bench.table.check_integrity()
    wanted = sum(
        len(RULES[bench.layout].placement(num_ranks=2, owner=bench.owner(seq), rotation=0).ranks_of_page(0))
        * -(-bench.cached(seq) // PAGE)
        for seq in bench.seqs
    )
    assert sum(pool.num_used for pool in bench.table.pools) == wanted


@pytest.mark.parametrize("layout", Layout)
def test_histories_are_in_place_and_steps_are_taken_back(layout: Layout) -> None:
    bench = group(layout)
    bench.place(BATCH, HISTORY)
    assert_in_place(bench)
    used = [pool.num_used for pool in bench.table.pools]
    rows = dict.fromkeys(bench.seqs, 7)
    plan = bench.step(rows, sampled=bench.seqs[:1])
    assert [step.start for step in plan.sequences] == [HISTORY] * BATCH
    assert [step.sample for step in plan.sequences] == [True, False, False, False]
    assert [len(new.tokens) for new in plan.started] == [HISTORY] * BATCH
    assert_in_place(bench)
    bench.rewind()
    assert [pool.num_used for pool in bench.table.pools] == used
    again = bench.step(rows)
    assert again.started == ()
    assert [step.tokens for step in again.sequences] == [step.tokens for step in plan.sequences]
    # Pages beyond the history are told anew, from the first that was freed on.
    assert {update.first_page for update in again.tables} == {-(-HISTORY // PAGE)}


@pytest.mark.parametrize("direction", list(itertools.permutations(Layout, 2)), ids=lambda d: f"{d[0]}-{d[1]}")
def test_a_switch_there_and_back_is_planned_like_any_other(direction: tuple[Layout, Layout]) -> None:
    source, destination = direction
    bench = group(source)
    bench.place(BATCH, HISTORY)
    plan = bench.switch(destination, SwitchMode.OVERLAPPED, dict.fromkeys(bench.seqs, 3))
    assert plan.manifest is not None
    assert (plan.layout, plan.epoch, plan.mode) == (destination, 1, SwitchMode.OVERLAPPED)
    assert_in_place(bench)
    bench.rewind()
    back = bench.switch(source, SwitchMode.BLOCKING, {})
    assert (back.layout, back.epoch, back.sequences) == (source, 2, ())
    assert_in_place(bench)


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    bench = group(Layout.DP, ordinary=20)
    with pytest.raises(Infeasible, match="room"):
        bench.place(BATCH, 200)
    assert bench.seqs == ()
    bench.place(BATCH, 30)
    used = [pool.num_used for pool in bench.table.pools]
    with pytest.raises(Infeasible, match="TP"):
        bench.switch(Layout.TP, SwitchMode.BLOCKING, dict.fromkeys(bench.seqs, 4000))
    with pytest.raises(Infeasible, match="DP"):
        bench.step(dict.fromkeys(bench.seqs, 4000))
    assert (bench.layout, [pool.num_used for pool in bench.table.pools]) == (Layout.DP, used)


def test_cleared_requests_are_told_to_the_ranks() -> None:
    bench = group(Layout.TP)
    bench.place(2, 8)
    bench.step(dict.fromkeys(bench.seqs, 1))
    gone = bench.seqs
    bench.clear()
    assert sum(pool.num_used for pool in bench.table.pools) == 0
    bench.place(1, 8)
    assert bench.step(dict.fromkeys(bench.seqs, 1)).finished == gone


def test_an_empty_group_switches_weights_only() -> None:
    manifest = group(Layout.TP).manifest(Layout.DP)
    assert (manifest.weights, manifest.moves) == (Primitive.ALL_GATHER, ())


def test_prefill_rows_are_shared_by_owners_and_what_is_left_goes_to_the_oldest() -> None:
    left = {SeqId(seq): 10 for seq in range(4)}
    owners = {SeqId(seq): RankId(seq % 2) for seq in range(4)}
    assert owner_rows(left, owners, 16, 2) == {0: 8, 1: 8}
    assert owner_rows(left, owners, 30, 2) == {0: 10, 1: 10, 2: 5, 3: 5}
    alone = {SeqId(0): 10, SeqId(2): 10}
    assert owner_rows(alone, owners, 16, 2) == {0: 10, 2: 6}
    assert owner_rows(left, owners, 1000, 2) == left
