"""Tensor names and shapes of a checkpoint, both expert forms.

Invariant: `expected_tensors` is exactly what the loader reads, so a checkpoint that passes `check_names` has
every tensor the engine needs and none that it would ignore in silence.
"""

import re
from collections.abc import Collection, Iterator

from splash_core.errors import ConfigError
from splash_core.spec.model import Family, ModelSpec, MoeSpec

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_LISTED = 8
"""Names that an error lists at most."""


def attention(layer: int) -> str:
    """Prefix of a layer's attention tensors."""
    return f"model.layers.{layer}.self_attn."


def mlp(layer: int) -> str:
    """Prefix of a layer's FFN tensors."""
    return f"model.layers.{layer}.mlp."


def has_fused_experts(names: Collection[str], spec: ModelSpec) -> bool:
    """Whether experts are stored as one `[E, …]` tensor per layer rather than one tensor per expert."""
    return spec.moe is not None and f"{mlp(spec.moe.first_dense)}experts.gate_up_proj" in names


def _attention_tensors(spec: ModelSpec, layer: int) -> Iterator[tuple[str, Shape]]:
    prefix, bias = attention(layer), spec.attention_bias
    if spec.q_lora_rank is None:
        yield prefix + "q_proj.weight", spec.q_b_shape
    else:
        yield prefix + "q_a_proj.weight", (spec.q_lora_rank, spec.hidden)
        if bias:
            yield prefix + "q_a_proj.bias", (spec.q_lora_rank,)
        yield prefix + "q_a_layernorm.weight", (spec.q_lora_rank,)
        yield prefix + "q_b_proj.weight", spec.q_b_shape
    yield prefix + "kv_a_proj_with_mqa.weight", (spec.kv_row, spec.hidden)
    if bias:
        yield prefix + "kv_a_proj_with_mqa.bias", (spec.kv_row,)
        yield prefix + "o_proj.bias", (spec.hidden,)
    yield prefix + "kv_a_layernorm.weight", (spec.kv_lora_rank,)
    heads, width, rank = spec.kv_b_shape
    yield prefix + "kv_b_proj.weight", (heads * width, rank)
    rows, hidden = spec.o_shape
    yield prefix + "o_proj.weight", (hidden, rows)


def _ffn_tensors(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
    yield prefix + "gate_proj.weight", (width, hidden)
    yield prefix + "up_proj.weight", (width, hidden)
    yield prefix + "down_proj.weight", (hidden, width)


def _moe_tensors(spec: ModelSpec, moe: MoeSpec, prefix: str, *, fused: bool) -> Iterator[tuple[str, Shape]]:
    yield prefix + "gate.weight", (moe.num_experts, spec.hidden)
    if spec.family is not Family.V2:
        yield prefix + "gate.e_score_correction_bias", (moe.num_experts,)
    if fused:
        yield prefix + "experts.gate_up_proj", (moe.num_experts, 2 * moe.intermediate, spec.hidden)
        yield prefix + "experts.down_proj", (moe.num_experts, spec.hidden, moe.intermediate)
    else:
        for expert in range(moe.num_experts):
            yield from _ffn_tensors(f"{prefix}experts.{expert}.", spec.hidden, moe.intermediate)
    if moe.num_shared:
        yield from _ffn_tensors(prefix + "shared_experts.", spec.hidden, moe.shared_intermediate)


def _layer_tensors(spec: ModelSpec, layer: int, *, fused: bool) -> Iterator[tuple[str, Shape]]:
    yield f"model.layers.{layer}.input_layernorm.weight", (spec.hidden,)
    yield f"model.layers.{layer}.post_attention_layernorm.weight", (spec.hidden,)
    yield from _attention_tensors(spec, layer)
    if spec.moe is not None and spec.is_moe(layer):
        yield from _moe_tensors(spec, spec.moe, mlp(layer), fused=fused)
    else:
        yield from _ffn_tensors(mlp(layer), spec.hidden, spec.dense_intermediate)


def expected_tensors(spec: ModelSpec, *, fused: bool) -> dict[str, Shape]:
    """Every tensor that the engine reads, with its stored shape."""
    tensors: dict[str, Shape] = {EMBEDDING: (spec.vocab, spec.hidden), FINAL_NORM: (spec.hidden,)}
    if not spec.tie_embeddings:
        tensors[LM_HEAD] = (spec.vocab, spec.hidden)
    for layer in range(spec.layers):
        tensors.update(_layer_tensors(spec, layer, fused=fused))
    return tensors


def _is_tolerated(name: str, spec: ModelSpec) -> bool:
    """Tensors that checkpoints carry and inference does not need."""
    layer = _LAYER.match(name)
    is_mtp = layer is not None and spec.layers <= int(layer.group(1)) < spec.layers + spec.mtp_layers
    is_tied_head = name == LM_HEAD and spec.tie_embeddings
    return is_mtp or is_tied_head or name.endswith(".rotary_emb.inv_freq")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def check_names(names: Collection[str], spec: ModelSpec) -> dict[str, Shape]:
    """Match a checkpoint's tensor names against the model; returns the expected shapes.

    Raises:
        ConfigError: names are missing or left over; lists up to eight of each.
    """
    expected = expected_tensors(spec, fused=has_fused_experts(names, spec))
    missing = [name for name in expected if name not in names]
    leftover = sorted(name for name in names if name not in expected and not _is_tolerated(name, spec))
    problems: list[str] = []
    if missing:
        problems.append(f"{len(missing)} tensors are missing: {_listed(missing)}")
    if leftover:
        problems.append(f"{len(leftover)} tensors are not part of the model: {_listed(leftover)}")
    if problems:
        raise ConfigError(f"checkpoint does not match {spec.name} ({spec.family}): {'; '.join(problems)}")
    return expected
