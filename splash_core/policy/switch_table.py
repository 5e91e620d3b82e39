"""The directed switches as the planner sees them, on a small group whose pages it really plans to move."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from splash_core.errors import InvariantBroken
from splash_core.ids import Epoch, PageId, RankId
from splash_core.layout.layout import ORDINARY_ONLY, RULES, STANDARD_LAYOUTS, KvPlacement, Layout
from splash_core.layout.ownership import PageTable
from splash_core.layout.slots import ArenaMap
from splash_core.switch.manifest import Primitive, SwitchManifest
from splash_core.switch.planner import plan_switch

_SYMBOLIC_RANKS = 4
"""Who holds what follows the same rule for any T > 1, so a few ranks stand for many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchKind:
    """What supplies each kind of state in one directed switch."""

    layout_from: Layout
    layout_to: Layout
    weights: Primitive
    kv: Primitive


def switch_table(num_ranks: int, layouts: Sequence[Layout] = STANDARD_LAYOUTS) -> tuple[SwitchKind, ...]:
    """All ordered pairs of layouts, with what the planner's manifest uses for weights and for KV."""
    ranks = min(num_ranks, _SYMBOLIC_RANKS)
    return tuple(_kind(before, after, ranks) for before, after in permutations(layouts, 2))


def _kind(before: Layout, after: Layout, ranks: int) -> SwitchKind:
    table = PageTable(_arena(ranks))
    wanted: dict[PageId, tuple[RankId, ...]] = {}
    targets = list(_requests(after, ranks))
    for source, target in zip(_requests(before, ranks), targets, strict=True):
        for index in range(ranks):
            page = table.new_page(source.ranks_of_page(index), lent=ORDINARY_ONLY)
            if page is None:
                raise InvariantBroken("the symbolic arena is too small for its own pages")
            wanted[page] = target.ranks_of_page(index)
    manifest = plan_switch(
        table=table,
        wanted=wanted,
        layout_from=before,
        layout_to=after,
        epoch=Epoch(1),
        staging_bytes=1 << 30,
    )
    if not isinstance(manifest, SwitchManifest):
        raise InvariantBroken(f"the symbolic switch is refused: {manifest.reason}")
    return SwitchKind(layout_from=before, layout_to=after, weights=manifest.weights, kv=manifest.kv)


def _requests(layout: Layout, ranks: int) -> Iterator[KvPlacement]:
    """One request per rank, each as many pages long as there are ranks."""
    for rank in range(ranks):
        yield RULES[layout].placement(num_ranks=ranks, owner=RankId(rank), rotation=rank)


def _arena(ranks: int) -> ArenaMap:
    slots = 4 * ranks * ranks
    return ArenaMap(
        num_ranks=ranks,
        num_layers=1,
        page_size=1,
        slot_bytes=1,
        num_slots=slots,
        places={},
        region_slots=0,
        lenders={},
        gap_bytes=0,
        arena_bytes=slots,
    )
