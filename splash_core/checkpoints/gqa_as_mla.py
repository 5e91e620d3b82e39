"""Re-expresses a Llama-type model (GQA with RoPE) as a dense DeepSeek-V3 (MLA) model, exactly.

Invariant: the two models compute the same function; only fp32 rounding differs. How each part is carried:

* values: the latent row's first g·d numbers are the v of all g KV heads; a head's W_UV picks its KV head's d;
* keys: the rotary row holds the k of all g KV heads (p = g·d), pairs interleaved as DeepSeek stores them, and
  longrope's per-pair factors give every pair the frequency that Llama gives it inside one head;
* queries: head j is zero except in the rotary pairs of its own KV head; W_UK is zero;
* scale: DeepSeek divides by sqrt(n + p), Llama by sqrt(d): the quotient goes into the queries;
* the latent's RMS norm must not rescale v: spare latent numbers carry a large constant (through the bias of
  W_KVA), so the mean square is a constant up to rounding, and the norm's weight multiplies it back.

Heads are padded with zero heads, so that more group sizes divide them.

Legend: D hidden, R latent (r), P rotary (p), H padded heads, Q real heads, G KV heads, E head dim d.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SPARE = 4096.0
"""The constant in spare latent numbers: its square dwarfs any |v|², and a power of two loses no digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GqaShape:
    """The source model's dimensions, and how much padding the MLA model gets."""

    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    heads: int
    """H: real heads plus zero heads."""
    latent: int
    """r: more than kv_heads · head_dim; the rest carries `SPARE`."""
    nope: int
    """n: unused by the source, but MLA wants one."""

    @property
    def rotary(self) -> int:
        """p: the keys of all KV heads side by side."""
        return self.kv_heads * self.head_dim

    def kv_head(self, head: int) -> int:
        """The KV head that query head `head` reads."""
        return head // (self.query_heads // self.kv_heads)

    def longrope_factors(self) -> list[float]:
        """`[p/2]`: what divides MLA's rotary frequencies so that each pair turns as in the source."""
        exponent_P = torch.arange(0, self.rotary, 2, dtype=torch.float64) / self.rotary
        wanted_E = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        return (self.rope_theta ** (wanted_E.repeat(self.kv_heads) - exponent_P)).tolist()


def convert(source: Mapping[str, Tensor], shape: GqaShape) -> Iterator[tuple[str, Tensor]]:
    """All tensors of the MLA checkpoint, one layer after the other; the head is tied to the embedding."""
    yield "model.embed_tokens.weight", source["model.embed_tokens.weight"]
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{name}.weight", source[f"{prefix}{name}.weight"]
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield f"{prefix}mlp.{name}.weight", source[f"{prefix}mlp.{name}.weight"]
        attention = {name: source[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkvo"}
        for name, tensor in _attention(attention, shape):
            yield f"{prefix}self_attn.{name}", tensor
    yield "model.norm.weight", source["model.norm.weight"]


def _attention(source: Mapping[str, Tensor], shape: GqaShape) -> Iterator[tuple[str, Tensor]]:
    yield "q_proj.weight", _queries(source["q"], shape)
    yield "kv_a_proj_with_mqa.weight", _latent_and_keys(source["k"], source["v"], shape)
    bias_R = torch.zeros(shape.latent + shape.rotary)
    bias_R[shape.rotary : shape.latent] = SPARE
    yield "kv_a_proj_with_mqa.bias", bias_R
    spare = shape.latent - shape.rotary
    yield "kv_a_layernorm.weight", torch.full((shape.latent,), SPARE * math.sqrt(spare / shape.latent))
    yield "kv_b_proj.weight", _value_selectors(shape)
    out_DX = torch.zeros(shape.hidden, shape.heads * shape.head_dim)
    out_DX[:, : shape.query_heads * shape.head_dim] = source["o"]
    yield "o_proj.weight", out_DX
    yield "o_proj.bias", torch.zeros(shape.hidden)


def _interleaved(half_split_ED: Tensor) -> Tensor:
    """Rows of one head from (first halves, second halves) to pairs next to each other."""
    first, second = half_split_ED.chunk(2)
    return torch.stack((first, second), dim=1).flatten(0, 1)


def _rows_of(kv_head: int, shape: GqaShape) -> slice:
    return slice(kv_head * shape.head_dim, (kv_head + 1) * shape.head_dim)


def _queries(weight_XD: Tensor, shape: GqaShape) -> Tensor:
    query_QED = weight_XD.view(shape.query_heads, shape.head_dim, shape.hidden)
    rescale = math.sqrt((shape.nope + shape.rotary) / shape.head_dim)
    nope_HND = torch.zeros(shape.heads, shape.nope, shape.hidden)
    rope_HPD = torch.zeros(shape.heads, shape.rotary, shape.hidden)
    for head in range(shape.query_heads):
        rope_HPD[head, _rows_of(shape.kv_head(head), shape)] = _interleaved(query_QED[head]) * rescale
    return torch.cat((nope_HND, rope_HPD), dim=1).flatten(0, 1)


def _latent_and_keys(key_XD: Tensor, value_XD: Tensor, shape: GqaShape) -> Tensor:
    key_GED = key_XD.view(shape.kv_heads, shape.head_dim, shape.hidden)
    spare_SD = torch.zeros(shape.latent - shape.rotary, shape.hidden)
    return torch.cat((value_XD, spare_SD, *(_interleaved(key_ED) for key_ED in key_GED)))


def _value_selectors(shape: GqaShape) -> Tensor:
    up_HXR = torch.zeros(shape.heads, shape.nope + shape.head_dim, shape.latent)
    for head in range(shape.query_heads):
        up_HXR[head, shape.nope :, _rows_of(shape.kv_head(head), shape)] = torch.eye(shape.head_dim)
    return up_HXR.flatten(0, 1)
