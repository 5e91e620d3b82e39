"""Checkpoint tensors → what one rank keeps: its shards here, its projections in the arena's form.

Invariant: each rank reads only the slices it keeps, and the ranks' shards together are the whole model.

Legend: H heads, D hidden, V vocabulary, E experts, I width of an FFN; r_q, r, p, n, v as in docs/model.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from splash_core.kernels.dtypes import at_least_fp32
from splash_core.layout.layout import Matrix
from splash_core.layout.shares import balanced_range
from splash_core.model.checkpoint import Checkpoint, CountingReader, Reader
from splash_core.model.names import EMBEDDING, FINAL_NORM, LM_HEAD, attention, mlp
from splash_core.model.shards import (
    DenseShard,
    LatentWeights,
    LayerWeights,
    MoeShard,
    RankWeights,
    VocabShard,
)
from splash_core.spec.model import Family, ModelSpec, MoeSpec

__all__ = ["Checkpoint", "load_shard", "planned_bytes", "read_projection"]


def read_projection(
    reader: Reader, spec: ModelSpec, layer: int, matrix: Matrix, head_start: int, head_end: int
) -> Tensor:
    """Heads `head_start … head_end-1` of one head-indexed matrix, in arena form and stored dtype.

    Returns:
        Q_B `[h·(n+p), r_q or d]`; KV_B `[h, n+v, r]`; O `[h·v, d]` (rows head-major, a transposed view).
    """
    assert 0 <= head_start <= head_end <= spec.heads
    prefix = attention(layer)

    def rows(per_head: int) -> tuple[int, int]:
        return head_start * per_head, head_end * per_head

    if matrix is Matrix.Q_B:
        name = "q_proj" if spec.q_lora_rank is None else "q_b_proj"
        return reader.read(f"{prefix}{name}.weight", rows(spec.qk_dim))
    if matrix is Matrix.KV_B:
        _, width, rank = spec.kv_b_shape
        flat = reader.read(f"{prefix}kv_b_proj.weight", rows(width))
        return flat.view(head_end - head_start, width, rank)
    return reader.read(f"{prefix}o_proj.weight", (0, spec.hidden), rows(spec.v_dim)).t()


def load_shard(
    reader: Reader, spec: ModelSpec, rank: int, num_ranks: int, dtype: torch.dtype, device: torch.device
) -> RankWeights:
    """Everything that rank `rank` of `num_ranks` keeps outside the arena.

    Args:
        reader: the open checkpoint.
        spec: its model.
        rank: 0 … num_ranks-1.
        num_ranks: T.
        dtype: element type of the weights; the router's never loses a bit.
        device: where they go.
    """
    loader = _Loader(reader=reader, spec=spec, rank=rank, num_ranks=num_ranks, dtype=dtype, device=device)
    embedding = loader.vocab_shard(EMBEDDING)
    return RankWeights(
        embedding=embedding,
        lm_head=embedding if spec.tie_embeddings else loader.vocab_shard(LM_HEAD),
        final_norm_D=loader.read(FINAL_NORM),
        layers=tuple(loader.layer(layer) for layer in range(spec.layers)),
    )


def planned_bytes(checkpoint: Checkpoint, rank: int, num_ranks: int, *, heads: Mapping[Matrix, int]) -> int:
    """Bytes that `load_shard` plus reading so many heads of each projection will read, for `track`."""
    counter, spec = CountingReader(checkpoint), checkpoint.spec
    load_shard(counter, spec, rank, num_ranks, torch.float32, torch.device("meta"))
    for layer in range(spec.layers):
        for matrix in Matrix:
            read_projection(counter, spec, layer, matrix, 0, heads[matrix])
    return counter.num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loader:
    reader: Reader
    spec: ModelSpec
    rank: int
    num_ranks: int
    dtype: torch.dtype
    device: torch.device

    def read(self, name: str, *ranges: tuple[int, int], dtype: torch.dtype | None = None) -> Tensor:
        tensor = self.reader.read(name, *ranges)
        return tensor.to(device=self.device, dtype=dtype or self.dtype).contiguous()

    def optional(self, name: str, *, present: bool) -> Tensor | None:
        return self.read(name) if present else None

    def vocab_shard(self, name: str) -> VocabShard:
        start, end = balanced_range(self.spec.vocab, self.num_ranks, self.rank)
        return VocabShard(
            weight_VjD=self.read(name, (start, end)), start=start, end=end, vocab=self.spec.vocab
        )

    def layer(self, layer: int) -> LayerWeights:
        prefix, norms = attention(layer), f"model.layers.{layer}."
        moe = self.spec.moe
        return LayerWeights(
            input_norm_D=self.read(norms + "input_layernorm.weight"),
            post_norm_D=self.read(norms + "post_attention_layernorm.weight"),
            latent=self.latent(prefix),
            o_bias_D=self.optional(prefix + "o_proj.bias", present=self.spec.attention_bias),
            ffn=(
                self.moe(mlp(layer), moe)
                if moe is not None and self.spec.is_moe(layer)
                else self.dense(mlp(layer), self.spec.dense_intermediate)
            ),
        )

    def latent(self, prefix: str) -> LatentWeights:
        """Both down-projections as one matrix."""
        has_q = self.spec.q_lora_rank is not None
        projections = [prefix + name for name in ("q_a_proj", "kv_a_proj_with_mqa")[not has_q :]]
        bias = None
        if self.spec.attention_bias:
            bias = torch.cat([self.read(name + ".bias") for name in projections])
        return LatentWeights(
            weight=torch.cat([self.read(name + ".weight") for name in projections]),
            bias=bias,
            q_norm=self.optional(prefix + "q_a_layernorm.weight", present=has_q),
            kv_norm=self.read(prefix + "kv_a_layernorm.weight"),
        )

    def dense(self, prefix: str, width: int) -> DenseShard:
        """This rank's columns of a gated FFN."""
        columns = balanced_range(width, self.num_ranks, self.rank)
        gate = self.read(prefix + "gate_proj.weight", columns)
        up = self.read(prefix + "up_proj.weight", columns)
        down = self.read(prefix + "down_proj.weight", (0, self.spec.hidden), columns)
        return DenseShard(gate_up=torch.cat((gate, up)), down=down)

    def moe(self, prefix: str, moe: MoeSpec) -> MoeShard:
        """This rank's experts, the router, and its share of the shared experts."""
        work = at_least_fp32(self.dtype)
        first, last = balanced_range(moe.num_experts, self.num_ranks, self.rank)
        if self.reader.fused_experts:
            gate_up = self.read(prefix + "experts.gate_up_proj", (first, last))
            down = self.read(prefix + "experts.down_proj", (first, last))
        else:
            gate_up, down = self.separate_experts(prefix, moe, first, last)
        has_bias = self.spec.family is not Family.V2
        return MoeShard(
            gate_ED=self.router(prefix + "gate.weight"),
            correction_bias_E=(
                self.read(prefix + "gate.e_score_correction_bias", dtype=work) if has_bias else None
            ),
            first=first,
            last=last,
            gate_up=gate_up,
            down=down,
            shared=self.dense(prefix + "shared_experts.", moe.shared_intermediate)
            if moe.num_shared
            else None,
        )

    def router(self, name: str) -> Tensor:
        stored = self.reader.read(name)
        exact = stored.dtype is torch.bfloat16 is self.dtype
        work = self.dtype if exact else at_least_fp32(self.dtype)
        return stored.to(device=self.device, dtype=work).contiguous()

    def separate_experts(self, prefix: str, moe: MoeSpec, first: int, last: int) -> tuple[Tensor, Tensor]:
        """One tensor per expert and matrix → `[E_j, 2·I, D]`, `[E_j, D, I]`, filled in place."""
        count, width, hidden = last - first, moe.intermediate, self.spec.hidden
        gate_up = torch.empty(count, 2 * width, hidden, dtype=self.dtype, device=self.device)
        down = torch.empty(count, hidden, width, dtype=self.dtype, device=self.device)
        for local in range(count):
            name = f"{prefix}experts.{first + local}."
            gate_up[local, :width] = self.reader.read(name + "gate_proj.weight")
            gate_up[local, width:] = self.reader.read(name + "up_proj.weight")
            down[local] = self.reader.read(name + "down_proj.weight")
        return gate_up, down
