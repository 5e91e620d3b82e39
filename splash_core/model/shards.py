"""What one rank keeps of a model besides its head-indexed projections, which live in the arena.

Invariant: shapes follow from (spec, rank, number of ranks) alone; every split is that of
`layout.shares`, so shares differ by at most one and the shares of all ranks cover the whole exactly once.

Legend: V vocabulary, D hidden, I width of an FFN, E experts; a trailing j marks this rank's share.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabShard:
    """Rows `start … end-1` of the embedding or of the LM head."""

    weight_VjD: Tensor
    start: int
    end: int
    vocab: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentWeights:
    """The replicated down-projections of one layer, q_a above kv_a: one product with the same rows."""

    weight: Tensor
    """`[r_q + r + p, d]`; without q_lora `[r + p, d]`."""
    bias: Tensor | None
    q_norm: Tensor | None
    """`[r_q]`; None: the model has no q_lora, and W_QB applies to the normed hidden state."""
    kv_norm: Tensor
    """`[r]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseShard:
    """A column/row share of a gated FFN: gate rows above up rows, and the matching down columns."""

    gate_up: Tensor
    """`[2·I_j, D]`."""
    down: Tensor
    """`[D, I_j]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShard:
    """This rank's experts `first … last-1`, the whole router, and a share of the shared experts."""

    gate_ED: Tensor
    """Router: at least fp32, or bf16 where model and checkpoint both are: no bit is lost."""
    correction_bias_E: Tensor | None
    """V3: added to the scores for the choice only; at least fp32."""
    first: int
    last: int
    gate_up: Tensor
    """`[E_j, 2·I, D]`."""
    down: Tensor
    """`[E_j, D, I]`."""
    shared: DenseShard | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer without W_QB, KV-B and W_O."""

    input_norm_D: Tensor
    post_norm_D: Tensor
    latent: LatentWeights
    o_bias_D: Tensor | None
    ffn: DenseShard | MoeShard


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """Everything a rank keeps outside the arena."""

    embedding: VocabShard
    lm_head: VocabShard
    """The embedding's own tensor when the model ties them."""
    final_norm_D: Tensor
    layers: tuple[LayerWeights, ...]
