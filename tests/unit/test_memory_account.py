"""The memory account (1)-(6) against figures that docs/model.md and the paper state, and against arenas."""

from dataclasses import replace

import pytest

from splash_core.cost.precision import Precision, named_precision
from splash_core.cost.switch import switch_bytes
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS, Layout, Matrix
from splash_core.layout.memory import MemoryAccount, attention_buffer_bytes
from splash_core.layout.slots import ArenaMap
from splash_core.spec.catalogue import named_spec
from splash_core.spec.model import ModelSpec
from splash_core.units import GIB, MIB

SHARDED, REPLICATED = (Layout.TP, Layout.DOP), (Layout.CP, Layout.DP)
FP8_WITHOUT_SCALES = Precision(name="fp8", weight_bytes=1, kv_b_bytes=3, activation_bytes=2, kv_bytes=1)


def account(
    spec: ModelSpec,
    precision: Precision,
    *,
    num_ranks: int = 8,
    page_size: int = 64,
    hbm_bytes: int = 140 * GIB,
    other_bytes: int = 60 * GIB,
) -> MemoryAccount:
    return MemoryAccount(
        spec=spec,
        num_ranks=num_ranks,
        page_size=page_size,
        projection_bytes={matrix: precision.matrix_bytes(spec, matrix) for matrix in Matrix},
        token_bytes=precision.kv_token_bytes(spec),
        hbm_bytes=hbm_bytes,
        fraction=0.85,
        staging_bytes=256 * MIB,
        other_bytes=dict.fromkeys(Layout, other_bytes),
    )


def missing_weights(
    spec: ModelSpec, precision: Precision, layout_from: Layout, layout_to: Layout, *, num_ranks: int
) -> int:
    """(2) for one layer."""
    rules, empty = (RULES[layout_from], RULES[layout_to]), [0] * num_ranks
    return switch_bytes(spec, precision, *rules, owner_tokens=empty).weights


def test_glm_5_misses_what_the_paper_says() -> None:
    spec = named_spec("glm-5")
    glm = account(spec, FP8_WITHOUT_SCALES)
    assert glm.projection_bytes == {Matrix.Q_B: 32 * MIB, Matrix.KV_B: (14 + 28) * MIB, Matrix.O: 96 * MIB}
    missing = missing_weights(spec, FP8_WITHOUT_SCALES, Layout.DOP, Layout.DP, num_ranks=8)
    assert missing == 148.75 * MIB
    assert spec.num_mla_layers * missing / GIB == pytest.approx(11.33, abs=0.005)
    with_scales = missing_weights(spec, named_precision("fp8"), Layout.TP, Layout.CP, num_ranks=8)
    assert spec.num_mla_layers * with_scales / GIB == pytest.approx(11.33, abs=0.01)


def test_deepseek_v32_row_on_h200_has_788_bytes() -> None:
    spec, fp8 = named_spec("deepseek-v3.2"), named_precision("fp8")
    row = fp8.latent_row_bytes(spec) + fp8.index_row_bytes(spec)
    assert row == 512 + 16 + 128 + 132 == 788
    assert account(spec, fp8).page_bytes == 64 * 61 * 788


def test_weights_are_missing_only_from_sharded_to_replicated() -> None:
    v3, per_layer = named_spec("deepseek-v3"), 328 * MIB * 3 // 4
    for before in STANDARD_LAYOUTS:
        for after in STANDARD_LAYOUTS:
            gathers = before in SHARDED and after in REPLICATED
            missing = missing_weights(v3, named_precision("bf16"), before, after, num_ranks=4)
            assert missing == (per_layer if gathers else 0)


def test_the_variant_misses_and_saves_matrix_by_matrix() -> None:
    # A layer of DeepSeek-V3: W_QB 72, KV-B 32, W_O 224 MiB.
    v3 = account(named_spec("deepseek-v3"), named_precision("bf16"), num_ranks=4)
    assert v3.weights_bytes(Layout.DOP_P) == 61 * (18 + 32 + 56) * MIB
    missing = {
        (before, after): missing_weights(v3.spec, named_precision("bf16"), before, after, num_ranks=4) / MIB
        for before in Layout
        for after in Layout
        if Layout.DOP_P in (before, after)
    }
    assert {pair for pair, size in missing.items() if size == 24} == {
        (Layout.TP, Layout.DOP_P),
        (Layout.DOP, Layout.DOP_P),
    }
    assert {pair for pair, size in missing.items() if size == 54 + 168} == {
        (Layout.DOP_P, Layout.CP),
        (Layout.DOP_P, Layout.DP),
    }
    assert sum(size == 0 for size in missing.values()) == 5


def test_dop_chunk_on_one_owner_needs_what_the_design_says() -> None:
    queries, outputs = attention_buffer_bytes(
        named_spec("deepseek-v3"), Layout.DOP, num_ranks=8, chunk_tokens=16384, elem_bytes=2
    )
    assert queries / 1e9 == pytest.approx(2.4, abs=0.05)
    assert outputs / 1e9 == pytest.approx(2.1, abs=0.05)


def test_footprint_counts_weights_gaps_and_pages() -> None:
    v3 = account(named_spec("deepseek-v3"), named_precision("bf16"))
    assert v3.weights_bytes(Layout.DP) == 61 * 328 * MIB
    assert v3.weights_bytes(Layout.DOP) == 61 * 41 * MIB
    empty, ten, some = v3.footprint(Layout.DP, [0, 10, 3])
    assert ten - empty == 10 * v3.page_bytes
    assert some - empty == 3 * v3.page_bytes
    assert empty == 60 * GIB + v3.weights_bytes(Layout.DP) + v3.gap_bytes(Layout.DP)
    assert v3.gap_bytes(Layout.DP) / 1e9 == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_the_account_and_the_arena_agree(num_ranks: int) -> None:
    spec = named_spec("deepseek-v3")
    v3 = account(spec, named_precision("bf16"), num_ranks=num_ranks)
    arena = ArenaMap.build(
        spec, num_ranks=num_ranks, page_size=64, elem_bytes=2, arena_bytes=v3.budget_bytes - 60 * GIB
    )
    assert v3.page_bytes == arena.slot_bytes
    assert v3.pool_pages(Layout.DP) == len(arena.ordinary)
    assert v3.pool_pages(Layout.DOP) == len(arena.ordinary) + len(arena.borrowed)
    assert v3.pool_pages(Layout.DOP_P) == arena.num_pages(RULES[Layout.DOP_P].lends)
    assert v3.gap_bytes(Layout.DP) == arena.gap_bytes
    own = sum(place.own_bytes for place in arena.places.values())
    lent = len(arena.borrowed) * arena.slot_bytes
    assert v3.gap_bytes(Layout.DOP) == arena.ordinary[0] * arena.slot_bytes - own - lent


def test_capacity_and_context_follow_the_history_rule() -> None:
    v3 = account(named_spec("deepseek-v3"), named_precision("bf16"))
    pool = {layout: v3.pool_pages(layout) * 64 for layout in Layout}
    assert pool[Layout.TP] == pool[Layout.DOP] > pool[Layout.DOP_P] > pool[Layout.DP] == pool[Layout.CP]
    assert v3.distinct_tokens(Layout.TP) == pool[Layout.TP]
    for layout in (Layout.CP, Layout.DP, Layout.DOP, Layout.DOP_P):
        assert v3.distinct_tokens(layout) == 8 * pool[layout]
    for layout in (Layout.TP, Layout.DP, Layout.DOP, Layout.DOP_P):
        assert v3.longest_context(layout) == pool[layout]
    assert v3.longest_context(Layout.CP) == 8 * pool[Layout.CP]


@pytest.mark.parametrize("layout", list(Layout))
def test_a_pool_is_what_the_budget_holds_and_no_page_more(layout: Layout) -> None:
    v3 = account(named_spec("deepseek-v3"), named_precision("bf16"))
    pages = v3.pool_pages(layout)
    held, beyond = v3.footprint(layout, [pages, pages + 1])
    assert held <= v3.budget_bytes < beyond


def test_heads_that_do_not_split_are_not_sharded() -> None:
    spec = replace(named_spec("deepseek-v3"), heads=6)
    odd = account(spec, named_precision("bf16"), num_ranks=4)
    assert not odd.can_run(Layout.TP)
    assert not odd.can_run(Layout.DOP)
    assert odd.can_run(Layout.DP)
    assert odd.pool_pages(Layout.DP) > 0
