import json
from pathlib import Path
from typing import Any

import pytest

from splash_core.errors import ConfigError
from splash_core.spec.catalogue import CATALOGUE, named_spec
from splash_core.spec.model import Family, ModelSpec, RopeKind
from splash_core.units import MIB

# facts: model → (L with MLA, d, H, r_q, r, n, p, v), MiB per layer in bf16 of Q-B, KV-B and O.
DIMENSIONS = {
    "deepseek-v2-lite": ((27, 2048, 16, None, 512, 128, 64, 128), (12, 4, 8)),
    "deepseek-v2": ((60, 5120, 128, 1536, 512, 128, 64, 128), (72, 32, 160)),
    "deepseek-v3": ((61, 7168, 128, 1536, 512, 128, 64, 128), (72, 32, 224)),
    "deepseek-r1": ((61, 7168, 128, 1536, 512, 128, 64, 128), (72, 32, 224)),
    "deepseek-v3.2": ((61, 7168, 128, 1536, 512, 128, 64, 128), (72, 32, 224)),
    "glm-5": ((78, 6144, 64, 2048, 512, 192, 64, 256), (64, 28, 192)),
    "glm-5.3-flash": ((11, 4096, 64, 1536, 512, 256, 0, 256), (48, 32, 128)),
    "glm-4.7-flash": ((47, 2048, 20, 768, 512, 192, 64, 256), (7.5, 8.75, 20)),
    "kimi-k2": ((61, 7168, 64, 1536, 512, 128, 64, 128), (36, 16, 112)),
    "kimi-linear": ((7, 2304, 32, None, 512, 128, 64, 128), (27, 8, 18)),
}


def v3_config(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "vocab_size": 320,
        "intermediate_size": 96,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "max_position_embeddings": 2560,
        "eos_token_id": 7,
    }
    config.update(changes)
    return {name: value for name, value in config.items() if value != "absent"}


@pytest.mark.parametrize("name", DIMENSIONS)
def test_catalogue_has_the_published_dimensions(name: str) -> None:
    spec = CATALOGUE[name]
    dims, mebibytes = DIMENSIONS[name]
    got = (
        spec.num_mla_layers,
        spec.hidden,
        spec.heads,
        spec.q_lora_rank,
        spec.kv_lora_rank,
        spec.nope_dim,
        spec.rope_dim,
        spec.v_dim,
    )
    assert got == dims
    q_b = spec.q_b_shape[0] * spec.q_b_shape[1]
    kv_b = spec.kv_b_shape[0] * spec.kv_b_shape[1] * spec.kv_b_shape[2]
    o = spec.o_shape[0] * spec.o_shape[1]
    assert tuple(2 * elements / MIB for elements in (q_b, kv_b, o)) == mebibytes


def test_catalogue_knows_indexers_and_hybrids() -> None:
    assert CATALOGUE["glm-5"].indexer is not None
    assert CATALOGUE["glm-5"].indexer.layers == 78
    assert CATALOGUE["glm-5.2"].indexer is not None
    assert CATALOGUE["glm-5.2"].indexer.layers == 21
    assert CATALOGUE["deepseek-v3"].indexer is None
    flash = CATALOGUE["glm-5.3-flash"]
    assert flash.linear is not None
    assert (flash.linear.layers, flash.kv_row) == (34, 512)
    assert CATALOGUE["kimi-linear"].linear is not None
    assert CATALOGUE["kimi-linear"].linear.layers == 20


def test_named_spec_ignores_case_and_vendor_and_lists_what_it_knows() -> None:
    assert named_spec("deepseek-ai/DeepSeek-V3") is CATALOGUE["deepseek-v3"]
    with pytest.raises(ConfigError, match="kimi-k2"):
        named_spec("gpt-2")


def test_servable_families() -> None:
    for name in ("deepseek-v2-lite", "deepseek-v3", "kimi-k2"):
        CATALOGUE[name].check_servable()
    for name in ("deepseek-v3.2", "glm-5", "glm-4.7-flash", "kimi-linear", "glm-5.3-flash"):
        with pytest.raises(ConfigError, match="planned only"):
            CATALOGUE[name].check_servable()


def test_quantised_checkpoints_and_two_sided_longrope_are_refused() -> None:
    fp8 = ModelSpec.from_hf(v3_config(quantization_config={"quant_method": "fp8"}))
    assert fp8.quantization == "fp8"
    with pytest.raises(ConfigError, match="fp8 weights are planned only"):
        fp8.check_servable()
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    with pytest.raises(ConfigError, match="short and long"):
        ModelSpec.from_hf(v3_config(rope_parameters=rope)).check_servable()
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 3}
    with pytest.raises(ConfigError, match="needs 4 factors, got 3"):
        ModelSpec.from_hf(v3_config(rope_parameters=rope)).check_servable()


def test_kimi_k2_is_v3() -> None:
    assert ModelSpec.from_hf(v3_config(model_type="kimi_k2")).family is Family.V3


def test_both_rope_spellings_read_the_same() -> None:
    scaling = {"factor": 40, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0}
    old = v3_config(rope_theta=50000, rope_scaling={"type": "yarn", **scaling})
    new = v3_config(rope_parameters={"rope_type": "yarn", "rope_theta": 50000.0, **scaling})
    assert ModelSpec.from_hf(old).rope == ModelSpec.from_hf(new).rope
    rope = ModelSpec.from_hf(new).rope
    assert (rope.kind, rope.theta, rope.factor, rope.original_max_positions) == (RopeKind.YARN, 5e4, 40.0, 64)


def test_rope_scaling_null_is_default() -> None:
    rope = ModelSpec.from_hf(v3_config(rope_scaling=None, rope_theta=1e6)).rope
    assert (rope.kind, rope.theta, rope.factor) == (RopeKind.DEFAULT, 1e6, 1.0)


def test_eos_comes_from_generation_config_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(v3_config(eos_token_id=1)))
    assert ModelSpec.from_checkpoint(tmp_path).eos_token_ids == (1,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    spec = ModelSpec.from_checkpoint(tmp_path)
    assert spec.eos_token_ids == (2, 9)
    assert spec.name == tmp_path.name


def test_dense_models_have_no_moe() -> None:
    assert ModelSpec.from_hf(v3_config(first_k_dense_replace=4)).moe is None
    spec = ModelSpec.from_hf(v3_config())
    assert [spec.is_moe(layer) for layer in range(4)] == [False, True, True, True]


def test_v2_ignores_norm_topk_prob_and_reads_its_method() -> None:
    greedy = ModelSpec.from_hf(v3_config(model_type="deepseek_v2", norm_topk_prob=True, topk_method="greedy"))
    assert greedy.moe is not None
    assert (greedy.moe.normalize_top_k, greedy.moe.group_limited) == (False, False)
    limited = ModelSpec.from_hf(v3_config(model_type="deepseek_v2", topk_method="group_limited_greedy"))
    assert limited.moe is not None
    assert limited.moe.group_limited


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"hidden_size": "wide"}, "hidden_size must be an integer, got 'wide'"),
        ({"hidden_size": True}, "hidden_size must be an integer"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"num_key_value_heads": 2}, "num_key_value_heads must equal"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"topk_method": "magic"}, "topk_method 'magic'"),
        ({"n_group": 3}, "8 experts do not split in 3 groups"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type 'dynamic'"),
        ({"rope_parameters": [1]}, "rope_parameters must be an object"),
        ({"eos_token_id": ["end"]}, "eos_token_id must hold numbers"),
        ({"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]}, "dense layers followed by sparse"),
    ],
)
def test_bad_configs_name_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelSpec.from_hf(v3_config(**changes))


def test_unreadable_config_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        ModelSpec.from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not readable JSON"):
        ModelSpec.from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object"):
        ModelSpec.from_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        ("DeepseekV3Config", "deepseek-v3"),
        ("DeepseekV32Config", "deepseek-v3.2"),
        ("GlmMoeDsaConfig", "glm-5"),
        ("Glm4MoeLiteConfig", "glm-4.7-flash"),
        ("KimiLinearConfig", "kimi-linear"),
        ("Glm5NextTextConfig", "glm-5.3-flash"),
    ],
)
def test_defaults_of_transformers_agree_with_the_catalogue(cls: str, name: str) -> None:
    import transformers

    ours = CATALOGUE[name]
    hybrid = (
        {"layer_types": ["full_attention"] * 7 + ["linear_attention"] * 20} if name == "kimi-linear" else {}
    )
    config = getattr(transformers, cls)(**hybrid).to_dict()
    theirs = ModelSpec.from_hf(config, name=name)
    for field in ModelSpec.__dataclass_fields__:
        if field not in {"rope", "max_positions", "eos_token_ids", "stored_dtype", "mtp_layers"}:
            assert getattr(theirs, field) == getattr(ours, field), field
