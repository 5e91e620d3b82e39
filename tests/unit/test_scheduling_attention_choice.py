"""How a step attends: the arithmetic of docs/model.md §4 on the shapes of real models."""

from dataclasses import replace

import pytest

from splash_core.layout.forms import AttentionForm, CpStorage, may_expand
from splash_core.layout.layout import RULES, Layout
from splash_core.scheduling.attention_choice import (
    ChunkShape,
    absorbed_flops,
    choose_cp_storage,
    choose_form,
    expanded_flops,
)
from tests.support.toy_group import SPEC

V3 = replace(
    SPEC, heads=128, hidden=7168, q_lora_rank=1536, kv_lora_rank=512, nope_dim=128, rope_dim=64, v_dim=128
)


def test_flops_per_pair_are_those_of_the_design() -> None:
    one = [ChunkShape(0, 1)]
    two = [ChunkShape(1, 1)]
    assert absorbed_flops(V3, two) - absorbed_flops(V3, one) == 2176
    key = 2 * 512 * 256
    assert expanded_flops(V3, two) - expanded_flops(V3, one) == 640 + key


def test_pairs_are_causal() -> None:
    assert ChunkShape(3, 4).pairs == sum(range(4, 8))


@pytest.mark.parametrize("layout", list(Layout))
def test_long_chunks_expand_where_the_heads_are_at_the_history(layout: Layout) -> None:
    form = choose_form(V3, RULES[layout], [ChunkShape(0, 4096), ChunkShape(9000, 1)])
    assert may_expand(RULES[layout]) == (layout is not Layout.DOP)
    assert form == (AttentionForm.EXPANDED if layout != Layout.DOP else AttentionForm.ABSORBED)


def test_few_rows_over_a_long_history_stay_absorbed() -> None:
    rule = RULES[Layout.DP]
    assert choose_form(V3, rule, [ChunkShape(32000, 8)]) is AttentionForm.ABSORBED
    assert choose_form(V3, rule, [ChunkShape(32000, 1)]) is AttentionForm.ABSORBED
    assert choose_form(V3, rule, []) is AttentionForm.ABSORBED


def test_striped_steps_move_whichever_is_smaller() -> None:
    rule = RULES[Layout.CP]
    # A query row is 1,536 + 128·129 numbers, a history row 576: 31.3 tokens of history a row.
    assert choose_cp_storage(V3, rule, [ChunkShape(3100, 100)]) is CpStorage.PASS_KV
    assert choose_cp_storage(V3, rule, [ChunkShape(3200, 100)]) is CpStorage.PASS_Q
    assert choose_cp_storage(V3, rule, [ChunkShape(0, 1)]) is CpStorage.PASS_Q
    assert choose_cp_storage(V3, RULES[Layout.DP], [ChunkShape(0, 100)]) is CpStorage.PASS_Q
    without_lora = replace(V3, q_lora_rank=None)
    # 7,168 + 16,512 numbers: 41.1 tokens.
    assert choose_cp_storage(without_lora, rule, [ChunkShape(4100, 100)]) is CpStorage.PASS_KV


def test_histories_of_decode_rows_beside_a_chunk_count() -> None:
    """Pass-KV gathers every history of the step: one short chunk must not drag sixty long ones along."""
    spec, rule = V3, RULES[Layout.CP]
    chunk = ChunkShape(start=0, count=256)
    assert choose_cp_storage(spec, rule, [chunk]) is CpStorage.PASS_KV
    beside = [ChunkShape(start=8192, count=1)] * 60
    assert choose_cp_storage(spec, rule, [chunk, *beside]) is CpStorage.PASS_Q
