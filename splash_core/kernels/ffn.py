"""The gated FFN with plain weights. Legend: N rows, D hidden, I width."""

from torch import Tensor

from splash_core.kernels.linear import linear
from splash_core.kernels.rows import silu_mul


def gated_ffn(x_ND: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """`down(silu(gate(x)) · up(x))` with gate rows above up rows: `[2·I, D]`, `[D, I]` → `[N, D]`."""
    return linear(silu_mul(linear(x_ND, gate_up)), down)
