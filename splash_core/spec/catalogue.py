"""Dimensions of known models, so that `splash plan` needs neither a download nor a config.json.

Invariant: each entry is what `ModelSpec.from_hf` yields for the published config (weights unquantised;
the planner chooses the element types).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from splash_core.errors import ConfigError
from splash_core.spec.model import ModelSpec

_MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_GLM_HEAD = {"kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256}


def _yarn(mscale: float, *, theta: float = 10000.0, **extra: float) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": mscale,
        "mscale_all_dim": mscale,
        **extra,
    }


_V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "q_lora_rank": None,
    **_MLA,
    "vocab_size": 102400,
    "intermediate_size": 10944,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
    "routed_scaling_factor": 1.0,
    "max_position_embeddings": 163840,
    "rope_parameters": _yarn(0.707),
    "eos_token_id": 100001,
}

_V2: dict[str, Any] = {
    **_V2_LITE,
    "num_hidden_layers": 60,
    "hidden_size": 5120,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "intermediate_size": 12288,
    "n_routed_experts": 160,
    "moe_intermediate_size": 1536,
    "topk_method": "group_limited_greedy",
    "n_group": 8,
    "topk_group": 3,
    "routed_scaling_factor": 16.0,
}

_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    **_MLA,
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 163840,
    "rope_parameters": _yarn(1.0),
    "num_nextn_predict_layers": 1,
    "eos_token_id": 1,
}

_V32: dict[str, Any] = {
    **_V3,
    "model_type": "deepseek_v32",
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
}

_GLM_5: dict[str, Any] = {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    **_GLM_HEAD,
    "vocab_size": 154880,
    "intermediate_size": 12288,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 202752,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "num_nextn_predict_layers": 1,
    "eos_token_id": [154820, 154827, 154829],
}

# 21 layers with an indexer of their own, each serving the ones behind it (57 shared).
_GLM_5_2: dict[str, Any] = {**_GLM_5, "index_topk_freq": 4, "index_skip_topk_offset": 3}

_GLM_4_7_FLASH: dict[str, Any] = {
    "model_type": "glm4_moe_lite",
    "num_hidden_layers": 47,
    "hidden_size": 2048,
    "num_attention_heads": 20,
    "q_lora_rank": 768,
    **_GLM_HEAD,
    "vocab_size": 154880,
    "intermediate_size": 10240,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 202752,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "num_nextn_predict_layers": 1,
    "eos_token_id": [154820, 154827, 154829],
}

_GLM_5_3_FLASH: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "num_hidden_layers": 45,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 256,
    "qk_rope_head_dim": 0,
    "v_head_dim": 256,
    "vocab_size": 154880,
    "intermediate_size": 12288,
    "n_routed_experts": 288,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1048576,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "linear_num_heads": 64,
    "linear_head_dim": 128,
}

_KIMI_K2: dict[str, Any] = {
    **_V3,
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "vocab_size": 163840,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "max_position_embeddings": 131072,
    "rope_parameters": _yarn(1.0, theta=50000.0, factor=32.0, beta_fast=1.0),
    "num_nextn_predict_layers": 0,
    "eos_token_id": 163585,
}

_KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 27,
    "hidden_size": 2304,
    "num_attention_heads": 32,
    "q_lora_rank": None,
    **_MLA,
    "vocab_size": 163840,
    "intermediate_size": 9216,
    "num_experts": 256,
    "num_shared_experts": 1,
    "num_experts_per_token": 8,
    "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_renormalize": True,
    "routed_scaling_factor": 2.446,
    "rms_norm_eps": 1e-5,
    "model_max_length": 1048576,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [layer for layer in range(1, 28) if layer not in (4, 8, 12, 16, 20, 24, 27)],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "eos_token_id": 163586,
}

_CONFIGS: Mapping[str, dict[str, Any]] = {
    "deepseek-v2-lite": _V2_LITE,
    "deepseek-v2": _V2,
    "deepseek-v3": _V3,
    "deepseek-r1": _V3,
    "deepseek-v3.1": _V3,
    "deepseek-v3.2": _V32,
    "glm-5": _GLM_5,
    "glm-5.1": _GLM_5,
    "glm-5.2": _GLM_5_2,
    "glm-5.3-flash": _GLM_5_3_FLASH,
    "glm-4.7-flash": _GLM_4_7_FLASH,
    "kimi-k2": _KIMI_K2,
    "kimi-linear": _KIMI_LINEAR,
}

CATALOGUE: Mapping[str, ModelSpec] = MappingProxyType(
    {name: ModelSpec.from_hf(config, name=name) for name, config in _CONFIGS.items()}
)
"""Model name in lower case → its spec."""


def named_spec(name: str) -> ModelSpec:
    """The spec of a known model; upper and lower case are the same, and a `vendor/` prefix is ignored.

    Raises:
        ConfigError: the name is unknown; lists the known ones.
    """
    spec = CATALOGUE.get(name.rsplit("/", 1)[-1].lower())
    if spec is None:
        raise ConfigError(
            f"model {name!r} is not known; name one of {', '.join(CATALOGUE)}, or give a directory "
            "with a config.json"
        )
    return spec
