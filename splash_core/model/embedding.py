"""Vocabulary-sharded embedding. Legend: N rows, D hidden, V_j this rank's part of the vocabulary."""

import torch.nn.functional as F
from torch import Tensor

from splash_core.model.shards import VocabShard


def embed_partial(tokens_N: Tensor, shard: VocabShard) -> Tensor:
    """`[N, D]`: the embedding of this rank's tokens, zeros elsewhere; the sum over ranks is exact."""
    if shard.end - shard.start == shard.vocab:
        return F.embedding(tokens_N, shard.weight_VjD)
    # Shapes do not depend on the tokens, so that a step can be captured in a CUDA graph.
    mine_N = (tokens_N >= shard.start) & (tokens_N < shard.end)
    rows_ND = F.embedding((tokens_N - shard.start).clamp(0, shard.end - shard.start - 1), shard.weight_VjD)
    return rows_ND.masked_fill(~mine_N[:, None], 0.0)
