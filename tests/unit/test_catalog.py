"""Which layouts are feasible, and the numbers in the refusals."""

from dataclasses import replace

import pytest

from splash_core.errors import ConfigError
from splash_core.layout.catalog import (
    FeasibleLayout,
    InfeasibleLayout,
    catalog_of_arena,
    catalog_of_memory,
    named_layouts,
)
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout, Matrix
from splash_core.layout.memory import MemoryAccount
from splash_core.layout.slots import ArenaMap, matrix_elements
from splash_core.spec.catalogue import named_spec
from splash_core.units import GIB, MIB, Tokens

SPEC = replace(named_spec("deepseek-v3"), max_positions=1 << 24)


def arena(*, heads: int = 128, num_ranks: int = 4) -> ArenaMap:
    spec = replace(SPEC, heads=heads)
    return ArenaMap.build(spec, num_ranks=num_ranks, page_size=64, elem_bytes=2, arena_bytes=40 * GIB)


def account(*, heads: int = 128, num_ranks: int = 4, hbm_bytes: int = 140 * GIB) -> MemoryAccount:
    spec = replace(SPEC, heads=heads)
    return MemoryAccount(
        spec=spec,
        num_ranks=num_ranks,
        page_size=64,
        projection_bytes={matrix: 2 * matrix_elements(spec, matrix) for matrix in Matrix},
        token_bytes=spec.num_mla_layers * spec.kv_row * 2,
        hbm_bytes=hbm_bytes,
        fraction=0.85,
        staging_bytes=256 * MIB,
        other_bytes=dict.fromkeys(Layout, 60 * GIB),
    )


def test_an_arena_holds_what_its_slots_hold() -> None:
    slots = arena()
    small = Tokens(len(slots.ordinary) * 64)
    large = Tokens(small + len(slots.borrowed) * 64)
    assert large > small
    assert dict(catalog_of_arena(SPEC, slots)) == {
        Layout.TP: FeasibleLayout(layout=Layout.TP, distinct_tokens=large, longest_context=large),
        Layout.CP: FeasibleLayout(
            layout=Layout.CP, distinct_tokens=Tokens(4 * small), longest_context=Tokens(4 * small)
        ),
        Layout.DP: FeasibleLayout(layout=Layout.DP, distinct_tokens=Tokens(4 * small), longest_context=small),
        Layout.DOP: FeasibleLayout(
            layout=Layout.DOP, distinct_tokens=Tokens(4 * large), longest_context=large
        ),
    }


def test_the_variant_is_in_the_catalogue_when_it_is_asked_for() -> None:
    slots = arena()
    (verdict,) = catalog_of_arena(SPEC, slots, [Layout.DOP_P]).values()
    pages = len(slots.ordinary) + len(slots.lenders[Matrix.Q_B]) + len(slots.lenders[Matrix.O])
    tokens = Tokens(pages * 64)
    assert verdict == FeasibleLayout(
        layout=Layout.DOP_P, distinct_tokens=Tokens(4 * tokens), longest_context=tokens
    )
    (odd,) = catalog_of_arena(replace(SPEC, heads=6), arena(heads=6), [Layout.DOP_P]).values()
    assert isinstance(odd, InfeasibleLayout)
    assert "DOP-P shards projections by heads" in odd.reason


@pytest.mark.parametrize(
    ("text", "layouts"),
    [
        ("TP,CP,DP,DOP", STANDARD_LAYOUTS),
        (" dop-p, tp ,tp", (Layout.TP, Layout.DOP_P)),
    ],
)
def test_layouts_are_named_with_commas(text: str, layouts: tuple[Layout, ...]) -> None:
    assert named_layouts(text) == layouts


@pytest.mark.parametrize("text", ["", " , ", "TP DP", "DOPP"])
def test_unknown_names_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="TP, CP, DP, DOP, DOP-P"):
        named_layouts(text)


def test_positions_bound_the_context() -> None:
    short = replace(SPEC, max_positions=1000)
    for verdict in catalog_of_arena(short, arena()).values():
        assert isinstance(verdict, FeasibleLayout)
        assert verdict.longest_context == 1000


@pytest.mark.parametrize("of_memory", [False, True])
def test_heads_that_do_not_split_rule_out_sharding_and_say_what_would_do(of_memory: bool) -> None:
    spec = replace(SPEC, heads=6)
    verdicts = (
        catalog_of_memory(account(heads=6, num_ranks=4), at=lambda ranks: account(heads=6, num_ranks=ranks))
        if of_memory
        else catalog_of_arena(spec, arena(heads=6))
    )
    for layout in (Layout.TP, Layout.DOP):
        verdict = verdicts[layout]
        assert isinstance(verdict, InfeasibleLayout)
        assert "6 heads do not split over 4 ranks; use 3 or 6 ranks, or a layout" in verdict.reason
    assert isinstance(verdicts[Layout.DP], FeasibleLayout)
    assert isinstance(verdicts[Layout.CP], FeasibleLayout)


def test_numbers_of_ranks_that_do_not_fit_by_memory_are_not_named() -> None:
    def at(ranks: int) -> MemoryAccount:
        return account(num_ranks=ranks, hbm_bytes=(160 if ranks > 7 else 40) * GIB)

    for layouts, words in (
        (STANDARD_LAYOUTS, "128 heads do not split over 7 ranks; use 8 ranks, or a layout"),
        ((Layout.TP,), "128 heads do not split over 7 ranks; use 8 ranks, or a layout"),
    ):
        verdict = catalog_of_memory(account(num_ranks=7), layouts, at=at)[Layout.TP]
        assert isinstance(verdict, InfeasibleLayout)
        assert words in verdict.reason
    (nowhere,) = catalog_of_memory(
        account(num_ranks=7), [Layout.TP], at=lambda ranks: account(num_ranks=ranks, hbm_bytes=GIB)
    ).values()
    assert isinstance(nowhere, InfeasibleLayout)
    assert "over 7 ranks; use a layout with replicated projections" in nowhere.reason


def test_memory_rules_out_replicated_projections_first() -> None:
    # 61 layers of 328 MiB of projections: 19.5 GiB a rank replicated, 4.9 GiB sharded over four.
    verdicts = catalog_of_memory(account(hbm_bytes=88 * GIB), at=lambda ranks: account(num_ranks=ranks))
    assert isinstance(verdicts[Layout.TP], FeasibleLayout)
    assert isinstance(verdicts[Layout.DOP], FeasibleLayout)
    for layout in (Layout.DP, Layout.CP):
        verdict = verdicts[layout]
        assert isinstance(verdict, InfeasibleLayout)
        assert "19.54 GiB of projections" in verdict.reason
        assert "85% of 88.00 GiB less 256.00 MiB of staging is 74.55 GiB" in verdict.reason


def test_one_rank_runs_every_layout_alike() -> None:
    verdicts = list(
        catalog_of_memory(
            account(num_ranks=1), tuple(Layout), at=lambda ranks: account(num_ranks=ranks)
        ).values()
    )
    assert all(isinstance(verdict, FeasibleLayout) for verdict in verdicts)
    sizes = {verdict.distinct_tokens for verdict in verdicts if isinstance(verdict, FeasibleLayout)}
    assert len(sizes) == 1
