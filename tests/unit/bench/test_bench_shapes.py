"""The shapes that are measured, and what they become with fewer layers or experts."""

import pytest

from services.bench.settings import (
    SwitchSettings,
    as_json,
    directions_of,
    layouts_of,
    modes_of,
    sizes,
)
from services.bench.shapes import bench_spec, describe
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.switch.manifest import SwitchMode


def test_v3_is_the_shape_of_the_peers_figures() -> None:
    spec = bench_spec("v3")
    assert (spec.heads, spec.q_lora_rank, spec.kv_lora_rank, spec.hidden) == (128, 1536, 512, 7168)
    assert (spec.nope_dim, spec.rope_dim, spec.v_dim, spec.vocab) == (128, 64, 128, 129_280)
    assert describe(spec) == {
        "model": "bench-v3",
        "layers": 61,
        "dense_layers": 3,
        "experts": 16,
        "top_k": 8,
        "expert_groups": 8,
        "top_groups": 4,
    }
    assert spec.moe is not None
    assert (spec.moe.intermediate, spec.moe.num_shared, spec.dense_intermediate) == (2048, 1, 18_432)
    spec.check_servable()


def test_fewer_layers_keep_a_sparse_one() -> None:
    assert describe(bench_spec("v3", layers=2))["dense_layers"] == 1
    assert describe(bench_spec("v3", layers=8))["dense_layers"] == 3


def test_too_few_experts_for_the_groups_are_chosen_from_without_groups() -> None:
    assert describe(bench_spec("v3", experts=32))["expert_groups"] == 8
    few = describe(bench_spec("v3", experts=6))
    assert (few["expert_groups"], few["top_groups"], few["top_k"]) == (1, 1, 6)


def test_unknown_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="v3, tiny"):
        bench_spec("v4")


def test_lists_are_read_with_suffixes() -> None:
    assert sizes("1,4K, 2", "--batch") == (1, 4096, 2)
    with pytest.raises(ConfigError, match="--batch"):
        sizes("0", "--batch")
    with pytest.raises(ConfigError, match="--batch"):
        sizes("many", "--batch")


def test_directions_are_all_ordered_pairs_unless_named() -> None:
    layouts = layouts_of("tp,CP,DP,DOP")
    assert len(directions_of("", layouts)) == 12
    assert directions_of("TP:dp", layouts) == ((Layout.TP, Layout.DP),)
    with pytest.raises(ConfigError, match="XP"):
        directions_of("TP:XP", layouts)
    assert layouts_of("") == tuple(Layout)


def test_modes_are_those_that_a_manifest_can_be_executed_in() -> None:
    assert modes_of("overlapped,blocking") == (SwitchMode.OVERLAPPED, SwitchMode.BLOCKING)
    with pytest.raises(ConfigError, match="blocking"):
        modes_of("ready")


def test_results_carry_all_settings_but_where_they_are_written() -> None:
    fields = as_json(SwitchSettings(out="somewhere", commit="abc"))
    assert "out" not in fields
    assert "commit" not in fields
    assert fields["reps"] == 15
