"""The planner on random ownership: every manifest is executed on symbols, every refusal is justified."""

from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.ids import Epoch, PageId, RankId, SlotId
from splash_core.layout.layout import ORDINARY_ONLY, RULES, Layout, Matrix
from splash_core.layout.ownership import NO_SLOT, PageTable
from splash_core.switch.manifest import Primitive, Refusal, SwitchManifest
from splash_core.switch.planner import plan_switch
from tests.support.manifest_simulator import LAYER_BYTES, MATRIX_BYTES, ArenaSimulator, toy_arena


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
            staging_bytes=self.staging_bytes,
        )

    @property
    def final(self) -> dict[PageId, tuple[RankId, ...]]:
        """What each page's ranks must be afterwards, by the documented rules."""
        final: dict[PageId, tuple[RankId, ...]] = {}
        for page in self.table.pages:
            held = self.table.ranks(page)
            wanted = tuple(sorted(self.wanted.get(page, held)))
            stays = self.table.is_pinned(page) and not set(held) <= set(wanted)
            final[page] = held if stays else wanted
        return final

    @property
    def pinned_under_weights(self) -> bool:
        return any(
            self.is_forbidden(copy.slot)
            for page in self.table.pages
            if self.table.is_pinned(page)
            for copy in self.table.copies(page)
        )

    def is_forbidden(self, slot: SlotId) -> bool:
        """Whether the destination's weights fill the slot."""
        lenders = self.table.arena.lenders
        return any(slot in lenders[matrix] for matrix in RULES[self.layout_to].fills)

    @property
    def shortage(self) -> int:
        """Slots that the fullest rank lacks for its final pages."""
        arena = self.table.arena
        slots = arena.num_pages(RULES[self.layout_to].lends)
        held = Counter(rank for ranks in self.final.values() for rank in ranks)
        return max(held.values(), default=0) - slots


def random_case(seed: int, *, pins: bool = True, ample_staging: bool = False) -> Case:
    """A group in the middle of its life: nearly full, with holes, shared, pinned and quarantined pages."""
    rng = Random(seed)
    num_ranks = rng.randint(1, 5)
    arena = toy_arena(
        num_ranks=num_ranks,
        num_layers=rng.randint(1, 3),
        ordinary=rng.randint(1, 10),
        borrowed=rng.randint(0, 10) if num_ranks > 1 else 0,
    )
    layout_from, layout_to = rng.choice(list(Layout)), rng.choice(list(Layout))
    if rng.random() < 0.4:
        lending = rng.choice([Layout.TP, Layout.DOP, Layout.DOP_P])
        layout_from, layout_to = lending, rng.choice([Layout.DP, Layout.CP, Layout.DOP_P])
    most = rng.choice([1, 1, 2, num_ranks])

    def some_ranks() -> tuple[RankId, ...]:
        size = rng.randint(1, min(most, num_ranks))
        return tuple(RankId(rank) for rank in rng.sample(range(num_ranks), size))

    table = PageTable(arena)
    for _ in range(rng.randint(0, 20 * num_ranks)):
        table.new_page(some_ranks(), lent=RULES[layout_from].lends)
    free, pin, share = rng.random() * 0.8, rng.choice([0, 0, 0.02, 0.1]) * pins, rng.random() * 0.2
    for page in table.pages:
        if rng.random() < share:
            table.share(page)
        if rng.random() < pin:
            table.pin(page)
        if rng.random() < free:
            table.release(page)
    moving = rng.choice([0.1, 0.5, 1.0])
    wanted = {page: some_ranks() for page in table.pages if rng.random() < moving}
    units = 1000 if ample_staging else rng.choice([1, 2, 3, 6, 20])
    return Case(table, wanted, layout_from, layout_to, units * LAYER_BYTES)


SEEDS = st.integers(0, 2**32)


@settings(max_examples=800, deadline=None)
@given(SEEDS)
def test_manifests_deliver_exactly_what_is_wanted(seed: int) -> None:
    case = random_case(seed)
    before = {page: case.table.row(page) for page in case.table.pages}
    plan = case.plan()
    assert plan == case.plan(), "not deterministic"
    assert before == {page: case.table.row(page) for page in case.table.pages}
    if isinstance(plan, Refusal):
        return
    simulator = ArenaSimulator(case.table, case.layout_from)
    final = case.final
    pinned = [page for page in case.table.pages if case.table.is_pinned(page)]
    copies = {copy: page for page in case.table.pages for copy in case.table.copies(page)}
    simulator.execute(plan, staging_bytes=case.staging_bytes)
    case.table.apply(plan)
    case.table.check_integrity()
    for copy, page in copies.items():
        stays = case.table.row(page)[copy.rank] == copy.slot
        assert case.table.is_current(copy) == stays, "a copy is stale exactly when its page has left"
    assert {page: case.table.ranks(page) for page in case.table.pages} == final
    simulator.assert_outcome(case.table, case.layout_to)
    for page in pinned:
        now = case.table.row(page)
        assert all(slot in (NO_SLOT, now[rank]) for rank, slot in enumerate(before[page]))
    for page, row in before.items():
        for rank, slot in enumerate(row):
            stays = RankId(rank) in final[page] and slot >= 0
            if stays and not case.is_forbidden(SlotId(slot)):
                assert case.table.row(page)[rank] == slot


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_refusals_are_justified(seed: int) -> None:
    case = random_case(seed)
    plan = case.plan()
    if case.pinned_under_weights or case.shortage > 0:
        assert isinstance(plan, Refusal)
        assert plan.needed_slots is not None
        assert plan.free_slots is not None
        assert plan.needed_slots > plan.free_slots
        assert plan.rank is not None
    elif isinstance(plan, Refusal):
        # Only staging is left as a reason, and only where it cannot hold one move.
        assert "staging" in plan.reason
        assert case.staging_bytes < case.table.arena.slot_bytes


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_with_ample_staging_whatever_fits_is_planned(seed: int) -> None:
    case = random_case(seed, ample_staging=True)
    fits = case.shortage <= 0 and not case.pinned_under_weights
    assert isinstance(case.plan(), SwitchManifest) == fits


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_bytes_and_primitives_follow_the_account(seed: int) -> None:
    case = random_case(seed)
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
    before, after = RULES[case.layout_from].fills, RULES[case.layout_to].fills
    gathered = after - before if table.num_ranks > 1 else ORDINARY_ONLY
    assert plan.gathered == tuple(matrix for matrix in Matrix if matrix in gathered)
    assert (plan.weights is Primitive.ALL_GATHER) == bool(gathered)
    assert plan.weight_bytes_per_layer == sum(MATRIX_BYTES[matrix] for matrix in gathered)
    lacking = [page for page, ranks in missing.items() if ranks]
    if not lacking:
        assert plan.kv in {Primitive.KEEP, Primitive.DISCARD}
    elif all(len(final[page]) == table.num_ranks for page in lacking):
        assert plan.kv is Primitive.ALL_GATHER
    else:
        assert plan.kv is Primitive.ALL_TO_ALL


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_borrowed_slots_are_the_last_choice(seed: int) -> None:
    case = random_case(seed, ample_staging=True, pins=False)
    plan = case.plan()
    if isinstance(plan, Refusal):
        return
    case.table.apply(plan)
    case.table.check_integrity()
    for rank, pool in enumerate(case.table.pools):
        landed_borrowed = {
            move.dst_slot for move in plan.moves if move.dst == rank and pool.is_borrowed(move.dst_slot)
        }
        if landed_borrowed:
            assert pool.free_ordinary == 0
