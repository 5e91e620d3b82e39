"""Matrix products with weights, in the orientation that is fast for the number of rows.

Legend: N rows, I or K inputs, O outputs, H heads, X more columns.
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


def tall(x_NK: Tensor, w_KO: Tensor) -> Tensor:
    """`x·W`, `[N, O]`: a product with a long inner dimension K, of rows as W is stored."""
    if x_NK.is_cuda:
        from splash_core.kernels import triton_products

        if triton_products.serves(x_NK, w_KO):
            return triton_products.product(x_NK, w_KO)
    return torch.matmul(x_NK, w_KO)


def per_head(x_NHI: Tensor, w_HIO: Tensor, tail: Tensor | None = None) -> Tensor:
    """`x·W` of each head, `[N, H, O]`; with `tail` `[N, H, X]` appended, `[N, H, O+X]`."""
    if x_NHI.device.type == "cpu":
        out_NHO = torch.matmul(x_NHI.transpose(0, 1), w_HIO).transpose(0, 1)
        return out_NHO if tail is None else torch.cat([out_NHO, tail], dim=-1)
    outputs = w_HIO.shape[2]
    more = 0 if tail is None else tail.shape[2]
    out_NHX = x_NHI.new_empty(*x_NHI.shape[:2], outputs + more)
    # A batched product writes rows that are any stride apart: nothing is transposed or joined by a copy.
    torch.bmm(x_NHI.transpose(0, 1), w_HIO, out=out_NHX[..., :outputs].transpose(0, 1))
    if tail is not None:
        out_NHX[..., outputs:] = tail
    return out_NHX
