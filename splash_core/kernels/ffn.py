"""The gated FFN with plain weights. Legend: N rows, D hidden, I width."""

import torch.nn.functional as F
from torch import Tensor

from splash_core.kernels.linear import linear


def gated_ffn(x_ND: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """`down(silu(gate(x)) · up(x))` with gate rows above up rows: `[2·I, D]`, `[D, I]` → `[N, D]`."""
    gate_NI, up_NI = linear(x_ND, gate_up).chunk(2, dim=-1)
    return linear(F.silu(gate_NI) * up_NI, down)
