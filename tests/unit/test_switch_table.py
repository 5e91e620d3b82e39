"""The twelve directed switches, derived from the planner on groups that serve requests.

The table of docs/model.md §2 is an expectation here and nowhere else: the product has rules and a planner.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations

import pytest

from splash_core.ids import Epoch, PageId, RankId, SlotId
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS, Layout, Matrix
from splash_core.layout.ownership import PageTable
from splash_core.layout.wanted import wanted_ranks
from splash_core.switch.manifest import Primitive, Refusal, SwitchManifest
from splash_core.switch.planner import plan_switch
from tests.support.manifest_simulator import LAYER_BYTES, MATRIX_BYTES, ArenaSimulator, toy_arena

KEEP, DISCARD, GATHER, EXCHANGE = (
    Primitive.KEEP,
    Primitive.DISCARD,
    Primitive.ALL_GATHER,
    Primitive.ALL_TO_ALL,
)
EVERY = frozenset(Matrix)
TP, CP, DP, DOP, DOP_P = Layout

DESIGN_TABLE = {
    (TP, DP): (GATHER, DISCARD),
    (TP, CP): (GATHER, DISCARD),
    (TP, DOP): (KEEP, DISCARD),
    (DP, TP): (DISCARD, GATHER),
    (DP, CP): (KEEP, EXCHANGE),
    (DP, DOP): (DISCARD, KEEP),
    (CP, TP): (DISCARD, GATHER),
    (CP, DP): (KEEP, EXCHANGE),
    (CP, DOP): (DISCARD, EXCHANGE),
    (DOP, TP): (KEEP, GATHER),
    (DOP, DP): (GATHER, KEEP),
    (DOP, CP): (GATHER, EXCHANGE),
}
VARIANT_TABLE = {
    (TP, DOP_P): ((GATHER, DISCARD), {Matrix.KV_B}),
    (CP, DOP_P): ((DISCARD, EXCHANGE), set()),
    (DP, DOP_P): ((DISCARD, KEEP), set()),
    (DOP, DOP_P): ((GATHER, KEEP), {Matrix.KV_B}),
    (DOP_P, TP): ((DISCARD, GATHER), set()),
    (DOP_P, CP): ((GATHER, EXCHANGE), {Matrix.Q_B, Matrix.O}),
    (DOP_P, DP): ((GATHER, KEEP), {Matrix.Q_B, Matrix.O}),
    (DOP_P, DOP): ((DISCARD, KEEP), set()),
}
"""Primitives of weights and KV, and which matrices are gathered."""
REQUEST_PAGES = (5, 1, 8, 3, 4, 7)
STAGING = 4 * LAYER_BYTES * 3


def group(
    layout: Layout, *, num_ranks: int, ordinary: int = 40, borrowed: int = 12
) -> tuple[PageTable, list[list[PageId]]]:
    """A group in `layout` that serves requests of uneven length, owners and rotations in turn."""
    arena = toy_arena(
        num_ranks=num_ranks, num_layers=3, ordinary=ordinary, borrowed=borrowed if num_ranks > 1 else 0
    )
    table, requests = PageTable(arena), []
    for request, length in enumerate(REQUEST_PAGES):
        placement = RULES[layout].placement(
            num_ranks=num_ranks, owner=RankId(request % num_ranks), rotation=request
        )
        pages: list[PageId] = []
        for index in range(length):
            page = table.new_page(placement.ranks_of_page(index), lent=RULES[layout].lends)
            assert page is not None
            pages.append(page)
        requests.append(pages)
    return table, requests


def wishes(
    layout: Layout, requests: list[list[PageId]], *, num_ranks: int
) -> dict[PageId, tuple[RankId, ...]]:
    return wanted_ranks(
        (
            pages,
            RULES[layout].placement(num_ranks=num_ranks, owner=RankId(request % num_ranks), rotation=request),
        )
        for request, pages in enumerate(requests)
    )


def plan(
    table: PageTable, wanted: dict[PageId, tuple[RankId, ...]], before: Layout, after: Layout
) -> SwitchManifest | Refusal:
    return plan_switch(
        table=table,
        wanted=wanted,
        layout_from=before,
        layout_to=after,
        epoch=Epoch(1),
        staging_bytes=STAGING,
    )


def derived(num_ranks: int) -> dict[tuple[Layout, Layout], tuple[Primitive, Primitive]]:
    table: dict[tuple[Layout, Layout], tuple[Primitive, Primitive]] = {}
    for before, after in permutations(STANDARD_LAYOUTS, 2):
        pages, requests = group(before, num_ranks=num_ranks)
        manifest = plan(pages, wishes(after, requests, num_ranks=num_ranks), before, after)
        assert isinstance(manifest, SwitchManifest)
        table[before, after] = (manifest.weights, manifest.kv)
    return table


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_the_twelve_switches_come_out_as_designed(num_ranks: int) -> None:
    table = derived(num_ranks)
    assert table == DESIGN_TABLE
    pairs = list(table.values())
    assert sum(weights is GATHER for weights, _ in pairs) == 4
    assert sum(kv in {GATHER, EXCHANGE} for _, kv in pairs) == 7
    assert sum(not {GATHER, EXCHANGE} & set(pair) for pair in pairs) == 2


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize(("before", "after"), list(VARIANT_TABLE))
def test_a_variant_gathers_only_the_matrices_that_become_replicated(
    before: Layout, after: Layout, num_ranks: int
) -> None:
    table, requests = group(before, num_ranks=num_ranks)
    manifest = plan(table, wishes(after, requests, num_ranks=num_ranks), before, after)
    assert isinstance(manifest, SwitchManifest)
    primitives, gathered = VARIANT_TABLE[before, after]
    assert (manifest.weights, manifest.kv) == primitives
    assert set(manifest.gathered) == gathered
    assert manifest.weight_bytes_per_layer == sum(MATRIX_BYTES[matrix] for matrix in gathered)


def test_only_the_slots_of_replicated_matrices_are_cleared() -> None:
    table = PageTable(toy_arena(num_ranks=2, num_layers=3, ordinary=6, borrowed=9))
    lenders = table.arena.lenders
    for _ in range(15):
        assert table.new_page([RankId(0)], lent=RULES[DOP].lends) is not None
    for page in table.pages[:6]:
        table.release(page)
    manifest = plan(table, {}, DOP, DOP_P)
    assert isinstance(manifest, SwitchManifest)
    assert {move.src_slot for move in manifest.moves} == set(lenders[Matrix.KV_B])
    assert {move.dst_slot for move in manifest.moves} < set(table.arena.ordinary)
    table.apply(manifest)
    rest = plan(table, {}, DOP_P, DP)
    assert isinstance(rest, Refusal)
    assert (rest.needed_slots, rest.free_slots) == (6, 3)


def test_one_rank_has_nothing_to_supply() -> None:
    assert set(derived(1).values()) == {(KEEP, KEEP)}


def missing_pages(table: PageTable, wanted: Mapping[PageId, Sequence[RankId]]) -> list[int]:
    """(3): per rank, the pages wanted there less those already there, `[T]`."""
    lacking: Counter[RankId] = Counter()
    for page, ranks in wanted.items():
        lacking.update(set(ranks).difference(table.ranks(page)))
    return [lacking[RankId(rank)] for rank in range(table.num_ranks)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(("before", "after"), list(permutations(Layout, 2)))
def test_each_switch_delivers_and_costs_the_account(before: Layout, after: Layout, num_ranks: int) -> None:
    table, requests = group(before, num_ranks=num_ranks)
    wanted = wishes(after, requests, num_ranks=num_ranks)
    missing = missing_pages(table, wanted)
    manifest = plan(table, wanted, before, after)
    assert isinstance(manifest, SwitchManifest)
    assert manifest.kv_bytes_per_layer == tuple(count * LAYER_BYTES for count in missing)
    simulator = ArenaSimulator(table, before)
    simulator.execute(manifest, staging_bytes=STAGING)
    table.apply(manifest)
    table.check_integrity()
    simulator.assert_outcome(table, after)
    assert {page: table.ranks(page) for page in table.pages} == wanted


@pytest.mark.parametrize(("before", "after"), list(permutations(Layout, 2)))
def test_there_and_back_again_restores_ownership(before: Layout, after: Layout) -> None:
    table, requests = group(before, num_ranks=3)
    simulator = ArenaSimulator(table, before)
    origin = {page: table.ranks(page) for page in table.pages}
    for here, there in ((before, after), (after, before)):
        manifest = plan(table, wishes(there, requests, num_ranks=3), here, there)
        assert isinstance(manifest, SwitchManifest)
        simulator.execute(manifest, staging_bytes=STAGING)
        table.apply(manifest)
        table.check_integrity()
        simulator.assert_outcome(table, there)
    assert {page: table.ranks(page) for page in table.pages} == origin


@pytest.mark.parametrize("layout", list(Layout))
def test_a_group_without_requests_moves_no_page(layout: Layout) -> None:
    for after in Layout:
        manifest = plan(
            PageTable(toy_arena(num_ranks=2, num_layers=3, ordinary=2, borrowed=2)), {}, layout, after
        )
        assert isinstance(manifest, SwitchManifest)
        assert manifest.moves == ()
        assert manifest.kv is KEEP


def test_a_full_decoupled_group_is_refused_with_the_numbers() -> None:
    table = PageTable(toy_arena(num_ranks=2, num_layers=3, ordinary=3, borrowed=8))
    for _ in range(10):
        assert table.new_page([RankId(1)], lent=EVERY) is not None
    rows = [table.row(page) for page in table.pages]
    refusal = plan(table, {}, DOP, DP)
    assert isinstance(refusal, Refusal)
    assert (refusal.rank, refusal.needed_slots, refusal.free_slots) == (1, 7, 0)
    assert refusal.reason.startswith("DOP → DP: rank 1 must take 7 pages but has 0 ordinary slots")
    assert [table.row(page) for page in table.pages] == rows
    table.check_integrity()


def test_evacuation_is_local_and_costs_no_network_bytes() -> None:
    table = PageTable(toy_arena(num_ranks=2, num_layers=3, ordinary=4, borrowed=8))
    pages = [table.new_page([RankId(0)], lent=EVERY) for _ in range(7)]
    for page in pages[:3]:
        assert page is not None
        table.release(page)
    manifest = plan(table, {}, DOP, DP)
    assert isinstance(manifest, SwitchManifest)
    assert len(manifest.moves) == 3
    assert all(move.src == move.dst == 0 for move in manifest.moves)
    assert manifest.layer_chunks == ()
    assert manifest.kv_bytes_per_layer == (0, 0)
    assert manifest.kv is KEEP
    released = [SlotId(slot) for slot in manifest.released[0]]
    generations = [table.pools[0].generation(slot) for slot in released]
    table.apply(manifest)
    assert [table.pools[0].generation(slot) for slot in released] == [g + 1 for g in generations]
    assert table.pools[0].used_borrowed == 0


def test_a_pinned_page_under_weights_refuses_the_switch() -> None:
    table = PageTable(toy_arena(num_ranks=2, num_layers=3, ordinary=1, borrowed=8))
    first, second = (table.new_page([RankId(0)], lent=EVERY) for _ in range(2))
    assert first is not None
    assert second is not None
    table.release(first)
    table.pin(second)
    refusal = plan(table, {}, TP, CP)
    assert isinstance(refusal, Refusal)
    assert "still being transferred" in refusal.reason
    table.unpin(second)
    assert isinstance(plan(table, {}, TP, CP), SwitchManifest)


def test_staging_below_one_page_refuses_an_evacuation() -> None:
    table = PageTable(toy_arena(num_ranks=2, num_layers=3, ordinary=1, borrowed=8))
    first, _ = (table.new_page([RankId(0)], lent=EVERY) for _ in range(2))
    assert first is not None
    table.release(first)
    refusal = plan_switch(
        table=table,
        wanted={},
        layout_from=DOP,
        layout_to=DP,
        epoch=Epoch(1),
        staging_bytes=3 * LAYER_BYTES - 1,
    )
    assert isinstance(refusal, Refusal)
    assert "staging of 23 bytes cannot hold one move of 24 bytes" in refusal.reason
