"""Families, and the parts of a model that not every family has: experts, indexer, linear attention."""

from dataclasses import dataclass
from enum import StrEnum

from splash_core.errors import ConfigError
from splash_core.spec.fields import Fields


class Family(StrEnum):
    """Numerics of the reference implementation: the `model_type` of the transformers class."""

    V2 = "deepseek_v2"
    V3 = "deepseek_v3"
    V32 = "deepseek_v32"
    GLM_DSA = "glm_moe_dsa"
    GLM4_LITE = "glm4_moe_lite"
    KIMI_LINEAR = "kimi_linear"
    GLM5_NEXT = "glm5_next_text"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Routed experts of a model's sparse layers."""

    num_experts: int
    top_k: int
    num_groups: int
    top_groups: int
    intermediate: int
    num_shared: int
    first_dense: int
    """Layers before this index are dense."""
    normalize_top_k: bool
    scale: float
    group_limited: bool
    """V2's `topk_method == group_limited_greedy`; V3 always limits by groups."""

    @property
    def shared_intermediate(self) -> int:
        """Width of the shared experts, which run as one FFN."""
        return self.intermediate * self.num_shared

    @classmethod
    def from_hf(cls, config: Fields, *, family: Family, layers: int) -> "MoeSpec | None":
        """None when the model has no sparse layer."""
        num_experts = config.optional_integer("n_routed_experts", "num_experts", "num_local_experts")
        first_dense = _first_dense(config, family=family, layers=layers)
        if not num_experts or first_dense >= layers:
            return None
        if config.integer("moe_layer_freq", default=1) != 1:
            raise ConfigError(f"{config.where}: moe_layer_freq other than 1 is not supported")
        method = config.text("topk_method", default="greedy" if family is Family.V2 else "noaux_tc")
        known = ("greedy", "group_limited_greedy") if family is Family.V2 else ("noaux_tc",)
        if method not in known:
            raise ConfigError(f"{config.where}: topk_method {method!r} is not one of {', '.join(known)}")
        moe = cls(
            num_experts=num_experts,
            top_k=config.integer("num_experts_per_tok", "num_experts_per_token"),
            num_groups=config.integer("n_group", "num_expert_group", default=1),
            top_groups=config.integer("topk_group", default=1),
            intermediate=config.integer("moe_intermediate_size"),
            num_shared=config.integer("n_shared_experts", "num_shared_experts", default=0),
            first_dense=first_dense,
            # The V2 reference ignores norm_topk_prob.
            normalize_top_k=family is not Family.V2
            and config.flag("norm_topk_prob", "moe_renormalize", default=True),
            scale=config.number("routed_scaling_factor", default=1.0),
            group_limited=family is not Family.V2 or method == "group_limited_greedy",
        )
        if moe.num_experts % moe.num_groups:
            raise ConfigError(
                f"{config.where}: {moe.num_experts} experts do not split in {moe.num_groups} groups"
            )
        return moe


def _first_dense(config: Fields, *, family: Family, layers: int) -> int:
    """How many leading layers have a dense FFN."""
    kinds = config.texts("mlp_layer_types")
    if not kinds:
        default = {Family.V2: 0, Family.GLM4_LITE: 1, Family.KIMI_LINEAR: 1}.get(family, 3)
        return min(config.integer("first_k_dense_replace", default=default), layers)
    dense = kinds.count("dense")
    if tuple(kinds) != ("dense",) * dense + ("sparse",) * (layers - dense):
        raise ConfigError(f"{config.where}: mlp_layer_types must be dense layers followed by sparse ones")
    return dense


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """DSA index heads (V3.2, GLM-5): counted by `splash plan`, not served yet."""

    num_heads: int
    head_dim: int
    top_k: int
    layers: int
    """Layers with an indexer of their own; the other MLA layers share the previous one's choice."""

    @classmethod
    def from_hf(cls, config: Fields, *, mla_layers: int) -> "IndexerSpec | None":
        """None for models with dense attention."""
        heads = config.optional_integer("index_n_heads")
        if not heads:
            return None
        kinds = config.texts("indexer_types")
        if kinds:
            full = kinds.count("full")
        else:
            frequency = max(config.integer("index_topk_freq", default=1), 1)
            offset = config.integer("index_skip_topk_offset", default=2)
            full = sum(max(layer - offset + 1, 0) % frequency == 0 for layer in range(mla_layers))
        return cls(
            num_heads=heads,
            head_dim=config.integer("index_head_dim"),
            top_k=config.integer("index_topk"),
            layers=min(full, mla_layers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttentionSpec:
    """KDA layers of a hybrid: a recurrent state per sequence instead of KV rows. Planned only."""

    layers: int
    heads: int
    head_dim: int
    conv_kernel: int

    @classmethod
    def from_hf(cls, config: Fields, *, family: Family, layers: int) -> "LinearAttentionSpec | None":
        """None for families without linear attention."""
        if family not in (Family.KIMI_LINEAR, Family.GLM5_NEXT):
            return None
        nested = config.section("linear_attn_config") or Fields({}, config.where)
        kinds = config.texts("layer_types")
        if kinds:
            count = kinds.count("linear_attention")
        elif nested.raw("kda_layers") is not None:
            count = len(nested.integers("kda_layers"))
        elif family is Family.KIMI_LINEAR:
            count = sum(layer == 0 or layer % 4 != 0 for layer in range(layers))
        else:
            count = sum(layer % 4 != 3 for layer in range(layers))
        default_heads = 32 if family is Family.KIMI_LINEAR else 64
        return cls(
            layers=count,
            heads=config.integer(
                "linear_num_heads", default=nested.integer("num_heads", default=default_heads)
            ),
            head_dim=config.integer("linear_head_dim", default=nested.integer("head_dim", default=128)),
            conv_kernel=config.integer(
                "linear_conv_kernel_dim", default=nested.integer("short_conv_kernel_size", default=4)
            ),
        )
