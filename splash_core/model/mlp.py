"""The gated FFN on one rank's share of its columns. Legend: N rows, D hidden."""

from torch import Tensor

from splash_core.kernels.ffn import gated_ffn
from splash_core.model.shards import DenseShard


def dense_ffn(x_ND: Tensor, shard: DenseShard) -> Tensor:
    """This rank's term of the FFN's sum over ranks, `[N, D]`."""
    return gated_ffn(x_ND, shard.gate_up, shard.down)
