"""Matrix products with weights, in the orientation that is fast for the number of rows.

Legend: N rows, I inputs, O outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 8
"""Up to here CPU BLAS is 1.1 to 1.5 times faster at `W·xᵀ` than at `x·Wᵀ` (fp32, measured; a decode step)."""


def linear(x_NI: Tensor, w_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`x·Wᵀ + b`, `[N, O]`, contiguous."""
    if x_NI.device.type != "cpu" or not 1 < x_NI.shape[0] <= FEW_ROWS:
        return F.linear(x_NI, w_OI, bias_O)
    out_NO = torch.mm(w_OI, x_NI.t()).t().contiguous()
    return out_NO if bias_O is None else out_NO + bias_O
