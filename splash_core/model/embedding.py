"""Vocabulary-sharded embedding. Legend: N rows, D hidden, V_j this rank's part of the vocabulary."""

import torch.nn.functional as F
from torch import Tensor

from splash_core.model.shards import VocabShard


def embed_partial(tokens_N: Tensor, shard: VocabShard) -> Tensor:
    """`[N, D]`: the embedding of this rank's tokens, zeros elsewhere; the sum over ranks is exact."""
    if shard.end - shard.start == shard.vocab:
        return F.embedding(tokens_N, shard.weight_VjD)
    mine_N = (tokens_N >= shard.start) & (tokens_N < shard.end)
    out_ND = shard.weight_VjD.new_zeros(tokens_N.shape[0], shard.weight_VjD.shape[1])
    out_ND[mine_N] = shard.weight_VjD[tokens_N[mine_N] - shard.start]
    return out_ND
