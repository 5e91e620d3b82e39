"""What the planner and the engine must know of a model; read once from a Hugging Face config.json.

Invariant: a `ModelSpec` is complete. Nobody reads config.json again, and whatever the numerics depend on
is either a field here or refused by `check_servable`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splash_core.errors import ConfigError
from splash_core.spec.fields import Fields, read_json
from splash_core.spec.parts import Family, IndexerSpec, LinearAttentionSpec, MoeSpec
from splash_core.spec.rope import RopeKind, RopeSpec

SERVABLE = (Family.V2, Family.V3)
"""Families that the engine runs; the others are known to the planner only."""

_MODEL_TYPES: Mapping[str, Family] = {
    **{family.value: family for family in Family},
    "kimi_k2": Family.V3,
    "glm5_next": Family.GLM5_NEXT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Dimensions of an MLA model. Legend: L layers, H heads, d hidden; r_q, r, p, n, v: docs/model.md."""

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
    linear: LinearAttentionSpec | None = None
    quantization: str | None = None
    """`quantization_config.quant_method` of the checkpoint, for example `fp8`."""
    stored_dtype: str = "bfloat16"
    """The checkpoint's element type as config.json names it."""
    mtp_layers: int = 0
    """Multi-token-prediction layers that a checkpoint may carry behind the last layer; not loaded."""

    @property
    def qk_dim(self) -> int:
        """n + p: width of one head's query."""
        return self.nope_dim + self.rope_dim

    @property
    def q_in(self) -> int:
        """Input width of W_QB: r_q, or d without q_lora."""
        return self.hidden if self.q_lora_rank is None else self.q_lora_rank

    @property
    def kv_row(self) -> int:
        """r + p: numbers in one token's KV row of one layer."""
        return self.kv_lora_rank + self.rope_dim

    @property
    def num_mla_layers(self) -> int:
        """Layers that hold KV rows."""
        return self.layers if self.mla_layers is None else self.mla_layers

    @property
    def q_b_shape(self) -> tuple[int, int]:
        """Rows and columns of W_QB: `[H·(n+p), r_q or d]`."""
        return self.heads * self.qk_dim, self.q_in

    @property
    def kv_b_shape(self) -> tuple[int, int, int]:
        """`[H, n+v, r]`: W_UK above W_UV for each head."""
        return self.heads, self.nope_dim + self.v_dim, self.kv_lora_rank

    @property
    def o_shape(self) -> tuple[int, int]:
        """`[H·v, d]`: head-major rows."""
        return self.heads * self.v_dim, self.hidden

    def is_moe(self, layer: int) -> bool:
        """Whether layer `layer` (0-based) has routed experts."""
        return self.moe is not None and layer >= self.moe.first_dense

    def check_servable(self) -> None:
        """Return if the engine can run this model.

        Raises:
            ConfigError: says what is missing, and that planning still works.
        """
        if self.family not in SERVABLE or self.indexer is not None or self.linear is not None:
            served = ", ".join(SERVABLE)
            raise ConfigError(
                f"{self.name}: {self.family} is planned only (`splash plan` knows it); served: {served}"
            )
        if self.quantization is not None:
            raise ConfigError(
                f"{self.name}: {self.quantization} weights are planned only; serve a bf16 or fp32 checkpoint"
            )
        rope = self.rope
        if rope.kind is RopeKind.LONGROPE and rope.short_factor != rope.long_factor:
            raise ConfigError(
                f"{self.name}: longrope with different short and long factors would re-rotate cached keys; "
                "serve it with one list for both"
            )
        if rope.kind is RopeKind.LONGROPE and len(rope.short_factor) != self.rope_dim // 2:
            raise ConfigError(
                f"{self.name}: longrope needs {self.rope_dim // 2} factors, got {len(rope.short_factor)}"
            )

    @classmethod
    def from_checkpoint(cls, directory: Path, *, name: str | None = None) -> "ModelSpec":
        """Read `config.json` of a checkpoint, and EOS ids from `generation_config.json` first.

        Raises:
            ConfigError: a file is missing or a field has an unusable value.
        """
        config = read_json(directory / "config.json")
        generation = directory / "generation_config.json"
        return cls.from_hf(
            config,
            name=name or directory.resolve().name,
            where=str(directory / "config.json"),
            generation_config=read_json(generation) if generation.exists() else None,
        )

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        *,
        name: str | None = None,
        generation_config: Mapping[str, Any] | None = None,
        where: str = "config.json",
    ) -> "ModelSpec":
        """Build the spec from a config.json's object; `name` defaults to its `_name_or_path` or model type.

        Args:
            config: the object.
            name: of the model.
            generation_config: generation_config.json's object.
            where: what to call the config in errors.

        Raises:
            ConfigError: the model type is unknown, or a field is missing or unusable.
        """
        fields = Fields(config, where)
        model_type = fields.text("model_type", default="")
        if model_type not in _MODEL_TYPES:
            known = ", ".join(sorted(_MODEL_TYPES))
            raise ConfigError(f"{where}: model_type {model_type!r} is not an MLA model known here ({known})")
        eos = Fields(generation_config or {}, "generation_config.json").integers("eos_token_id")
        text = fields.section("text_config") or fields
        return _build(
            text,
            family=_MODEL_TYPES[model_type],
            name=name or fields.text("_name_or_path", default=model_type) or model_type,
            eos=eos or text.integers("eos_token_id") or fields.integers("eos_token_id"),
        )


def _build(config: Fields, *, family: Family, name: str, eos: tuple[int, ...]) -> ModelSpec:
    _check_plain(config)
    layers = config.integer("num_hidden_layers")
    linear = LinearAttentionSpec.from_hf(config, family=family, layers=layers)
    mla_layers = layers if linear is None else layers - linear.layers
    quantization = config.section("quantization_config")
    return ModelSpec(
        name=name,
        family=family,
        layers=layers,
        hidden=config.integer("hidden_size"),
        heads=config.integer("num_attention_heads"),
        q_lora_rank=config.optional_integer("q_lora_rank"),
        kv_lora_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        v_dim=config.integer("v_head_dim"),
        vocab=config.integer("vocab_size"),
        dense_intermediate=config.integer("intermediate_size"),
        moe=MoeSpec.from_hf(config, family=family, layers=layers),
        rms_eps=config.number("rms_norm_eps", default=1e-6),
        rope=RopeSpec.from_hf(config),
        attention_bias=config.flag("attention_bias", default=False),
        tie_embeddings=config.flag("tie_word_embeddings", default=False),
        max_positions=config.integer("max_position_embeddings", "model_max_length", default=2048),
        eos_token_ids=eos,
        indexer=IndexerSpec.from_hf(config, mla_layers=mla_layers),
        mla_layers=None if linear is None else mla_layers,
        linear=linear,
        quantization=None if quantization is None else quantization.text("quant_method", default="unknown"),
        stored_dtype=config.text("dtype", "torch_dtype", default="bfloat16"),
        mtp_layers=config.integer("num_nextn_predict_layers", "num_mtp_layers", default=0),
    )


def _check_plain(config: Fields) -> None:
    """Refuse what would silently change the numerics."""
    if config.text("hidden_act", default="silu") != "silu":
        raise ConfigError(
            f"{config.where}: hidden_act {config.raw('hidden_act')!r} is not supported (silu is)"
        )
    if config.flag("mlp_bias", default=False):
        raise ConfigError(f"{config.where}: mlp_bias true is not supported")
    heads = config.integer("num_attention_heads")
    if config.integer("num_key_value_heads", default=heads) != heads:
        raise ConfigError(
            f"{config.where}: num_key_value_heads must equal num_attention_heads ({heads}) in MLA"
        )
