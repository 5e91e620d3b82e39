"""The planner on random ownership: every manifest is executed on symbols, every refusal is justified."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.ids import Epoch, PageId, RankId
from splash_core.layout.layout import RULES, Layout
from splash_core.layout.ownership import PageTable
from splash_core.switch.manifest import Primitive, Refusal, SwitchManifest
from splash_core.switch.planner import plan_switch
from tests.support.manifest_simulator import LAYER_BYTES, ArenaSimulator, toy_arena

WEIGHT_BYTES = 100


@dataclass(frozen=True)
class Case:
    table: PageTable
    wanted: dict[PageId, tuple[RankId, ...]]
    layout_from: Layout
    layout_to: Layout
    staging_bytes: int

    def plan(self) -> SwitchManifest | Refusal:
        return plan_switch(
            table=self.table,
            wanted=self.wanted,
            layout_from=self.layout_from,
            layout_to=self.layout_to,
            epoch=Epoch(7),
            weight_bytes_per_layer=WEIGHT_BYTES,
            num_layers=self.table.arena.num_layers,
            staging_bytes=self.staging_bytes,
        )

    @property
    def final(self) -> dict[PageId, tuple[RankId, ...]]:
        """What each page's ranks must be afterwards, by the documented rules."""
        return {
            page: self.table.ranks(page)
            if self.table.is_pinned(page)
            else tuple(sorted(self.wanted.get(page, self.table.ranks(page))))
            for page in self.table.pages
        }

    @property
    def pinned_under_weights(self) -> bool:
        return not RULES[self.layout_to].borrows and any(
            self.table.pools[copy.rank].is_borrowed(copy.slot)
            for page in self.table.pages
            if self.table.is_pinned(page)
            for copy in self.table.copies(page)
        )

    @property
    def shortage(self) -> int:
        """Slots that the fullest rank lacks for its final pages."""
        arena = self.table.arena
        slots = len(arena.ordinary) + (len(arena.borrowed) if RULES[self.layout_to].borrows else 0)
        held = Counter(rank for ranks in self.final.values() for rank in ranks)
        return max(held.values(), default=0) - slots


def rank_sets(num_ranks: int) -> st.SearchStrategy[tuple[RankId, ...]]:
    ranks = [RankId(rank) for rank in range(num_ranks)]
    return st.lists(st.sampled_from(ranks), min_size=1, unique=True).map(tuple)


@st.composite
def cases(draw: st.DrawFn, *, pins: bool = True, ample_staging: bool = False) -> Case:
    num_ranks = draw(st.integers(1, 4))
    arena = toy_arena(
        num_ranks=num_ranks,
        num_layers=draw(st.integers(1, 3)),
        ordinary=draw(st.integers(1, 8)),
        borrowed=draw(st.integers(0, 7)) if num_ranks > 1 else 0,
    )
    layout_from, layout_to = draw(st.sampled_from(Layout)), draw(st.sampled_from(Layout))
    table = PageTable(arena)
    sets = rank_sets(num_ranks)
    for ranks in draw(st.lists(sets, max_size=24)):
        table.new_page(ranks, allow_borrowed=RULES[layout_from].borrows)
    for page in table.pages:
        fate = draw(st.sampled_from(["keep", "keep", "keep", "share", "free", "pin", "quarantine"]))
        if fate == "share":
            table.share(page)
        if fate in {"pin", "quarantine"} and pins:
            table.pin(page)
        if fate in {"free", "quarantine"}:
            table.release(page)
    wanted = {page: draw(sets) for page in table.pages if draw(st.integers(0, 4))}
    units = draw(st.integers(1, 6 * arena.num_layers)) if not ample_staging else 1000
    return Case(table, wanted, layout_from, layout_to, units * LAYER_BYTES)


@settings(max_examples=1500, deadline=None)
@given(cases())
def test_manifests_deliver_exactly_what_is_wanted(case: Case) -> None:
    before = {page: case.table.row(page) for page in case.table.pages}
    plan = case.plan()
    assert plan == case.plan()
    assert before == {page: case.table.row(page) for page in case.table.pages}
    if isinstance(plan, Refusal):
        return
    simulator = ArenaSimulator(case.table, case.layout_from)
    final = case.final
    pinned = [page for page in case.table.pages if case.table.is_pinned(page)]
    simulator.execute(plan, staging_bytes=case.staging_bytes)
    case.table.apply(plan)
    assert {page: case.table.ranks(page) for page in case.table.pages} == final
    simulator.assert_outcome(case.table, case.layout_to)
    assert all(case.table.row(page) == before[page] for page in pinned)
    for page, row in before.items():
        for rank, slot in enumerate(row):
            stays = RankId(rank) in final[page] and slot >= 0
            forbidden = not RULES[case.layout_to].borrows and slot in case.table.arena.borrowed
            if stays and not forbidden:
                assert case.table.row(page)[rank] == slot


@settings(max_examples=600, deadline=None)
@given(cases())
def test_refusals_are_justified(case: Case) -> None:
    plan = case.plan()
    if case.pinned_under_weights or case.shortage > 0:
        assert isinstance(plan, Refusal)
        assert plan.needed_slots is not None
        assert plan.free_slots is not None
        assert plan.needed_slots > plan.free_slots
        assert plan.rank is not None
    elif isinstance(plan, Refusal):
        # Only staging is left as a reason, and it would not be one with room for all pages.
        assert "staging" in plan.reason
        ample = Case(case.table, case.wanted, case.layout_from, case.layout_to, 1000 * LAYER_BYTES)
        assert isinstance(ample.plan(), SwitchManifest)


@settings(max_examples=400, deadline=None)
@given(cases(ample_staging=True))
def test_with_ample_staging_whatever_fits_is_planned(case: Case) -> None:
    fits = case.shortage <= 0 and not case.pinned_under_weights
    assert isinstance(case.plan(), SwitchManifest) == fits


@settings(max_examples=400, deadline=None)
@given(cases())
def test_bytes_and_primitives_follow_the_account(case: Case) -> None:
    plan = case.plan()
    if isinstance(plan, Refusal):
        return
    table, final = case.table, case.final
    missing = {
        page: [rank for rank in ranks if rank not in table.ranks(page)] for page, ranks in final.items()
    }
    received = Counter(rank for ranks in missing.values() for rank in ranks)
    assert plan.kv_bytes_per_layer == tuple(
        received[RankId(rank)] * LAYER_BYTES for rank in range(table.num_ranks)
    )
    gathers = RULES[case.layout_from].borrows and not RULES[case.layout_to].borrows and table.num_ranks > 1
    assert (plan.weights is Primitive.ALL_GATHER) == gathers
    assert plan.weight_bytes_per_layer == (WEIGHT_BYTES if gathers else 0)
    lacking = [page for page, ranks in missing.items() if ranks]
    if not lacking:
        assert plan.kv in {Primitive.KEEP, Primitive.DISCARD}
    elif all(len(final[page]) == table.num_ranks for page in lacking):
        assert plan.kv is Primitive.ALL_GATHER
    else:
        assert plan.kv is Primitive.ALL_TO_ALL


@settings(max_examples=400, deadline=None)
@given(cases(ample_staging=True, pins=False))
def test_borrowed_slots_are_the_last_choice(case: Case) -> None:
    plan = case.plan()
    if isinstance(plan, Refusal):
        return
    case.table.apply(plan)
    for rank, pool in enumerate(case.table.pools):
        landed_borrowed = {
            move.dst_slot for move in plan.moves if move.dst == rank and pool.is_borrowed(move.dst_slot)
        }
        if landed_borrowed:
            assert pool.free_ordinary == 0
