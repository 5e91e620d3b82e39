"""The slot map: places of weights, borrowed slots, rounding, refusal."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.errors import ConfigError, Infeasible
from splash_core.layout.layout import Matrix
from splash_core.layout.slots import ArenaMap, can_shard, matrix_elements, page_bytes
from splash_core.spec.catalogue import named_spec
from splash_core.spec.model import ModelSpec
from splash_core.units import GIB, MIB


def tiny_spec(
    *, heads: int = 4, layers: int = 2, hidden: int = 32, q_lora_rank: int | None = 16
) -> ModelSpec:
    return replace(
        named_spec("deepseek-v3"),
        layers=layers,
        heads=heads,
        hidden=hidden,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=12,
        nope_dim=8,
        rope_dim=4,
        v_dim=8,
    )


def build(spec: ModelSpec, *, num_ranks: int = 2, page_size: int = 1, elem_bytes: int = 4) -> ArenaMap:
    return ArenaMap.build(
        spec, num_ranks=num_ranks, page_size=page_size, elem_bytes=elem_bytes, arena_bytes=4 * MIB
    )


def test_an_arena_of_any_size_is_a_few_numbers() -> None:
    small = build(tiny_spec())
    huge = ArenaMap.build(tiny_spec(), num_ranks=2, page_size=1, elem_bytes=4, arena_bytes=10**30)
    assert huge.num_ordinary == 10**30 // huge.slot_bytes - huge.region_slots
    assert huge.ordinary[0] == small.ordinary[0]
    assert huge.num_pages(frozenset()) == huge.num_ordinary


def test_bytes_of_matrices_follow_shapes() -> None:
    spec = named_spec("deepseek-v3")
    sizes = {matrix: matrix_elements(spec, matrix) * 2 / MIB for matrix in Matrix}
    assert sizes == {Matrix.Q_B: 72, Matrix.KV_B: 32, Matrix.O: 224}
    assert page_bytes(spec, page_size=64, elem_bytes=2) == 61 * 64 * 576 * 2


def test_without_q_lora_the_query_projection_reads_hidden_rows() -> None:
    with_lora, without = tiny_spec(q_lora_rank=16), tiny_spec(q_lora_rank=None)
    assert matrix_elements(with_lora, Matrix.Q_B) == 4 * 12 * 16
    assert matrix_elements(without, Matrix.Q_B) == 4 * 12 * 32


def test_deepseek_v3_loses_the_gap_that_the_design_states() -> None:
    arena = ArenaMap.build(
        named_spec("deepseek-v3"), num_ranks=8, page_size=64, elem_bytes=2, arena_bytes=80 * GIB
    )
    assert arena.gap_bytes / 1e9 == pytest.approx(0.4, abs=0.05)
    assert arena.gather_bytes_per_layer(tuple(Matrix)) == 328 * MIB * 7 // 8
    assert arena.layer_slice_bytes == 64 * 576 * 2


@settings(max_examples=200, deadline=None)
@given(
    heads=st.integers(1, 12),
    layers=st.integers(1, 4),
    num_ranks=st.integers(1, 6),
    page_size=st.integers(1, 8),
    elem_bytes=st.sampled_from([2, 4, 8]),
    q_lora_rank=st.sampled_from([None, 8, 24]),
)
def test_places_are_aligned_disjoint_and_lowest(
    heads: int, layers: int, num_ranks: int, page_size: int, elem_bytes: int, q_lora_rank: int | None
) -> None:
    spec = tiny_spec(heads=heads, layers=layers, q_lora_rank=q_lora_rank)
    arena = build(spec, num_ranks=num_ranks, page_size=page_size, elem_bytes=elem_bytes)
    slot, end = arena.slot_bytes, 0
    assert list(arena.places) == [(layer, matrix) for layer in range(layers) for matrix in Matrix]
    for place in arena.places.values():
        shards = num_ranks if can_shard(spec, num_ranks) else 1
        assert place.own_bytes * shards == place.full_bytes
        own_end = place.offset + place.own_bytes
        assert own_end % slot == 0
        assert end <= place.offset < end + slot
        assert place.offset % elem_bytes == 0
        near = range(place.offset // slot, place.end // slot + 1)
        inside = [each for each in near if own_end <= each * slot and (each + 1) * slot <= place.end]
        assert list(place.borrowed) == inside
        end = place.end
    assert arena.borrowed == tuple(slot for place in arena.places.values() for slot in place.borrowed)
    for matrix, slots in arena.lenders.items():
        places = [place for place in arena.places.values() if place.matrix is matrix]
        assert slots == tuple(slot for place in places for slot in place.borrowed)
        assert arena.num_pages(frozenset({matrix})) == len(arena.ordinary) + len(slots)
    assert arena.ordinary[0] * slot >= end > (arena.ordinary[0] - 1) * slot
    assert arena.ordinary == range(arena.ordinary[0], arena.num_slots)
    assert not set(arena.ordinary) & set(arena.borrowed)
    assert arena.arena_bytes == arena.num_slots * slot <= 4 * MIB
    full = sum(place.full_bytes for place in arena.places.values())
    assert arena.gap_bytes == arena.ordinary[0] * slot - full


def test_heads_that_do_not_divide_borrow_nothing() -> None:
    arena = build(tiny_spec(heads=5), num_ranks=2)
    assert arena.borrowed == ()
    assert arena.gather_bytes_per_layer(tuple(Matrix)) == 0


def test_one_rank_owns_everything() -> None:
    arena = build(tiny_spec(), num_ranks=1)
    assert arena.borrowed == ()
    assert all(place.own_bytes == place.full_bytes for place in arena.places.values())


def test_small_pages_let_a_tiny_model_borrow() -> None:
    arena = build(tiny_spec(hidden=64), num_ranks=2, page_size=2)
    assert len(arena.borrowed) >= 8


def test_an_arena_without_room_is_refused_with_the_bytes_that_would_do() -> None:
    spec = tiny_spec()
    least = (build(spec).ordinary[0] + 1) * build(spec).slot_bytes
    with pytest.raises(Infeasible, match=f"nearest feasible: {least} bytes"):
        ArenaMap.build(spec, num_ranks=2, page_size=1, elem_bytes=4, arena_bytes=least - 1)
    fits = ArenaMap.build(spec, num_ranks=2, page_size=1, elem_bytes=4, arena_bytes=least)
    assert len(fits.ordinary) == 1


@pytest.mark.parametrize("field", ["num_ranks", "page_size", "elem_bytes"])
def test_arguments_must_be_positive(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be at least 1, got 0"):
        build(tiny_spec(), **{field: 0})
