"""Vocabulary-sharded embedding. Legend: N rows, D hidden, V_j this rank's part of the vocabulary."""

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_core.model.shards import VocabShard


def embed_partial(tokens_N: Tensor, shard: VocabShard) -> Tensor:
    """`[N, D]`: the embedding of this rank's tokens, zeros elsewhere; the sum over ranks is exact."""
    if shard.end - shard.start == shard.vocab:
        return F.embedding(tokens_N, shard.weight_VjD)
    if shard.start == shard.end:
        return shard.weight_VjD.new_zeros(tokens_N.shape[0], shard.weight_VjD.shape[1])
    # Shapes must not depend on the tokens: the lookup may be part of a CUDA graph.
    mine_N = (tokens_N >= shard.start) & (tokens_N < shard.end)
    own_ND = F.embedding(torch.where(mine_N, tokens_N - shard.start, 0), shard.weight_VjD)
    return own_ND.masked_fill(~mine_N[:, None], 0.0)
