"""The vocabulary-sharded LM head. Legend: N rows, D hidden, V_j this rank's part of the vocabulary."""

from torch import Tensor

from splash_core.kernels.linear import linear
from splash_core.model.shards import VocabShard


def logits_partial(h_ND: Tensor, shard: VocabShard) -> Tensor:
    """`[N, V_j]`: logits of this rank's part of the vocabulary; rank order concatenates to `[N, V]`."""
    return linear(h_ND, shard.weight_VjD)
