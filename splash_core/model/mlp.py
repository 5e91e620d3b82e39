"""The gated FFN on one rank's share of its columns. Legend: N rows, D hidden, I_j this rank's width."""

import torch.nn.functional as F
from torch import Tensor

from splash_core.kernels.linear import linear
from splash_core.model.shards import DenseShard


def gated_ffn(x_ND: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """`down(silu(gate(x)) · up(x))` with gate rows above up rows: `[2·I, D]`, `[D, I]` → `[N, D]`."""
    gate_NI, up_NI = linear(x_ND, gate_up).chunk(2, dim=-1)
    return linear(F.silu(gate_NI) * up_NI, down)


def dense_ffn(x_ND: Tensor, shard: DenseShard) -> Tensor:
    """This rank's term of the FFN's sum over ranks, `[N, D]`."""
    return gated_ffn(x_ND, shard.gate_up, shard.down)
