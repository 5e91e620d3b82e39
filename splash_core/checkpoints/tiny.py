"""Small random checkpoints in Hugging Face form, for tests and for `splash model tiny`.

Invariant: the same options and seed give the same bytes. Weights are scaled so that activations neither
vanish nor grow over the layers, and tensor names are those of published checkpoints. Written without
transformers, whose import takes seconds; tests hold the result against its strict loading.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splash_core.checkpoints.byte_tokenizer import (
    EOS_TOKEN_ID,
    NUM_BYTES,
    SPECIAL_TOKENS,
    write_byte_tokenizer,
)
from splash_core.checkpoints.files import write_json, write_weights
from splash_core.errors import ConfigError
from splash_core.model.names import attention, expected_tensors, mlp
from splash_core.spec.model import ModelSpec


class TinyFamily(StrEnum):
    """Architectures that can be written; the engine serves the first two."""

    V2 = "v2"
    V3 = "v3"
    V32 = "v32"
    GLM5 = "glm5"


_ARCHITECTURES = {
    TinyFamily.V2: ("deepseek_v2", "DeepseekV2ForCausalLM"),
    TinyFamily.V3: ("deepseek_v3", "DeepseekV3ForCausalLM"),
    TinyFamily.V32: ("deepseek_v32", "DeepseekV32ForCausalLM"),
    TinyFamily.GLM5: ("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
}
_GAIN = 0.64
"""Of each matrix: at 1 the reference's own fp32 error reaches 1e-5, the tolerance of the tests."""
_YARN_ORIGINAL = 64
"""Positions before yarn stretches them: small, so that tests reach the stretched range."""
_INDEX_HEADS, _INDEX_DIM, _INDEX_TOP_K = 16, 16, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyOptions:
    """Dimensions of a random checkpoint. Legend as in docs/model.md."""

    q_lora_rank: int | None = 24
    layers: int = 4
    hidden: int = 64
    heads: int = 8
    kv_lora_rank: int = 32
    nope_dim: int = 16
    rope_dim: int = 8
    v_dim: int = 16
    vocab: int = 320
    dense_intermediate: int = 96
    num_experts: int = 8
    """0: every layer is dense."""
    top_k: int = 2
    num_groups: int = 4
    top_groups: int = 2
    num_shared: int = 1
    moe_intermediate: int = 32
    first_dense: int = 1
    rope: str = "yarn"
    """`yarn`, `default` or `longrope`."""
    max_positions: int = 2560
    attention_bias: bool = False
    tie_embeddings: bool = False
    fused_experts: bool = False
    """Store `experts.gate_up_proj` per layer instead of one tensor per expert."""
    max_shard_bytes: int | None = None
    """Cut into several files with an index when one would be larger."""
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.vocab < NUM_BYTES + len(SPECIAL_TOKENS):
            least = NUM_BYTES + len(SPECIAL_TOKENS)
            raise ConfigError(f"vocab must be at least {least} (bytes and special tokens), got {self.vocab}")
        if self.num_experts and self.num_experts % self.num_groups:
            raise ConfigError(f"{self.num_experts} experts do not split in {self.num_groups} groups")


def write_tiny(
    out: Path, *, family: str = "v3", seed: int = 0, options: TinyOptions | None = None, **overrides: Any
) -> Path:
    """Write a random checkpoint with tokenizer and chat template into directory `out`; returns it.

    Args:
        out: made if absent; files of an earlier checkpoint are replaced.
        family: `v2`, `v3`, `v32` or `glm5`.
        seed: of the weights.
        options: dimensions; or give single fields of `TinyOptions` by keyword.
        overrides: fields of `TinyOptions` that differ from `options`.
    """
    if family not in tuple(TinyFamily):
        raise ConfigError(f"family must be one of {', '.join(TinyFamily)}, got {family!r}")
    options = TinyOptions(**{**_as_dict(options or TinyOptions()), **overrides})
    config = _config(TinyFamily(family), options)
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob("model*.safetensors*"):
        stale.unlink()
    write_json(out / "config.json", config)
    write_json(
        out / "generation_config.json",
        {"bos_token_id": NUM_BYTES, "eos_token_id": [EOS_TOKEN_ID], "do_sample": False},
    )
    write_weights(out, _random_tensors(config, options, seed), options.max_shard_bytes)
    write_byte_tokenizer(out, max_length=options.max_positions)
    return out


def _as_dict(options: TinyOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in TinyOptions.__dataclass_fields__}


def _rope_parameters(family: TinyFamily, options: TinyOptions) -> dict[str, Any]:
    if options.rope == "default":
        return {"rope_type": "default", "rope_theta": 10000.0}
    if options.rope == "yarn":
        mscale = 0.707 if family is TinyFamily.V2 else 1.0
        return {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": options.max_positions / _YARN_ORIGINAL,
            "original_max_position_embeddings": _YARN_ORIGINAL,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": mscale,
            "mscale_all_dim": mscale,
        }
    if options.rope == "longrope":
        factors = [1.0 + 0.5 * index for index in range(options.rope_dim // 2)]
        return {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "factor": 1.0,
            "attention_factor": 1.0,
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": options.max_positions,
        }
    raise ConfigError(f"rope must be yarn, default or longrope, got {options.rope!r}")


def _config(family: TinyFamily, options: TinyOptions) -> dict[str, Any]:
    model_type, architecture = _ARCHITECTURES[family]
    fields: dict[str, Any] = {
        "model_type": model_type,
        "architectures": [architecture],
        "dtype": str(options.dtype).removeprefix("torch."),
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "vocab_size": options.vocab,
        "hidden_size": options.hidden,
        "intermediate_size": options.dense_intermediate,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "num_key_value_heads": options.heads,
        "max_position_embeddings": options.max_positions,
        "q_lora_rank": options.q_lora_rank,
        "kv_lora_rank": options.kv_lora_rank,
        "qk_nope_head_dim": options.nope_dim,
        "qk_rope_head_dim": options.rope_dim,
        "v_head_dim": options.v_dim,
        "attention_bias": options.attention_bias,
        "tie_word_embeddings": options.tie_embeddings,
        "moe_intermediate_size": options.moe_intermediate,
        "n_routed_experts": options.num_experts or 2,
        "n_shared_experts": options.num_shared,
        "num_experts_per_tok": options.top_k,
        "first_k_dense_replace": options.first_dense if options.num_experts else options.layers,
        "n_group": options.num_groups,
        "topk_group": options.top_groups,
        "routed_scaling_factor": 2.5,
        "rope_parameters": _rope_parameters(family, options),
        "bos_token_id": NUM_BYTES,
        "eos_token_id": EOS_TOKEN_ID,
        "pad_token_id": None,
    }
    if family is TinyFamily.V2:
        fields["topk_method"] = "greedy" if options.num_groups == 1 else "group_limited_greedy"
    else:
        fields["norm_topk_prob"] = True
    if family in (TinyFamily.V32, TinyFamily.GLM5):
        fields.update(index_n_heads=_INDEX_HEADS, index_head_dim=_INDEX_DIM, index_topk=_INDEX_TOP_K)
    return fields


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Names and shapes of everything that is stored, with one tensor per expert and matrix."""
    shapes = expected_tensors(spec, fused=False)
    if spec.indexer is None:
        return shapes
    heads, dim = spec.indexer.num_heads, spec.indexer.head_dim
    for layer in range(spec.layers):
        prefix = attention(layer) + "indexer."
        shapes[prefix + "wq_b.weight"] = (heads * dim, spec.q_in)
        shapes[prefix + "wk.weight"] = (dim, spec.hidden)
        shapes[prefix + "k_norm.weight"] = (dim,)
        shapes[prefix + "k_norm.bias"] = (dim,)
        shapes[prefix + "weights_proj.weight"] = (heads, spec.hidden)
    return shapes


def _random_tensors(config: dict[str, Any], options: TinyOptions, seed: int) -> dict[str, Tensor]:
    """Matrices of equal gain, jittered norms, small biases; the router's bias stays fp32 as published."""
    spec, generator = ModelSpec.from_hf(config), torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in sorted(_shapes(spec).items()):
        noise = torch.randn(shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            noise.mul_(0.1).add_(1.0)
        elif name.endswith("bias"):
            noise.mul_(0.1)
        else:
            noise.mul_(_GAIN / math.sqrt(shape[-1]))
        tensors[name] = noise.to(torch.float32 if name.endswith("e_score_correction_bias") else options.dtype)
    return _fused(tensors, spec) if options.fused_experts else tensors


def _fused(tensors: dict[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """The same weights with each layer's experts stacked into two tensors."""
    result = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(spec.layers):
        if spec.moe is None or not spec.is_moe(layer):
            continue
        prefix = mlp(layer) + "experts."
        experts = [f"{prefix}{expert}." for expert in range(spec.moe.num_experts)]
        result[prefix + "gate_up_proj"] = torch.stack(
            [torch.cat((tensors[e + "gate_proj.weight"], tensors[e + "up_proj.weight"])) for e in experts]
        )
        result[prefix + "down_proj"] = torch.stack([tensors[e + "down_proj.weight"] for e in experts])
    return result
