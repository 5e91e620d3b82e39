"""What the planner and the engine must know of a model; read once from a Hugging Face config.json."""

from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """Numerics of the reference implementation (facts: `transformers` classes)."""

    V2 = "deepseek_v2"
    V3 = "deepseek_v3"


class RopeKind(StrEnum):
    """How rotary frequencies are scaled."""

    DEFAULT = "default"
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding parameters (transformers `rope_parameters`)."""

    kind: RopeKind
    theta: float
    factor: float = 1.0
    original_max_positions: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """DSA index heads (V3.2, GLM-5): counted by `splash plan`, not served yet."""

    num_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Dimensions of an MLA model. Legend: L layers, H heads, d hidden, r_q, r, p, n, v as in design.md."""

    name: str
    family: Family
    layers: int
    hidden: int
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    vocab: int
    dense_intermediate: int
    moe: MoeSpec | None
    rms_eps: float
    rope: RopeSpec
    attention_bias: bool
    tie_embeddings: bool
    max_positions: int
    eos_token_ids: tuple[int, ...]
    indexer: IndexerSpec | None = None
    mla_layers: int | None = None
    """Layers with MLA attention when not all have it (hybrids, `splash plan` only)."""
