"""RMS norm as the reference computes it, in at least fp32. Legend: N rows, D width."""

import torch
from torch import Tensor

from splash_core.kernels.dtypes import at_least_fp32

LATENT_EPS = 1e-6
"""Epsilon of the q_a and kv_a norms in every family: not the model's `rms_norm_eps`."""


def rms_norm(x_ND: Tensor, w_D: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x²) + eps) · w` over the last dim; result in x's dtype."""
    h_ND = x_ND.to(at_least_fp32(x_ND.dtype))
    scale_N1 = torch.rsqrt(h_ND.square().mean(-1, keepdim=True) + eps)
    return w_D * (h_ND * scale_N1).to(x_ND.dtype)
