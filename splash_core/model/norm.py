"""RMS norm as the reference computes it, in at least fp32. Legend: N rows, D width."""

from torch import Tensor

from splash_core.kernels import rows

LATENT_EPS = 1e-6
"""Epsilon of the q_a and kv_a norms in every family: not the model's `rms_norm_eps`."""


def rms_norm(x_ND: Tensor, w_D: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x²) + eps) · w` over the last dim; result in x's dtype."""
    return rows.rms_norm(x_ND, w_D, eps)


def add_and_norm(h_ND: Tensor, more_ND: Tensor, w_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream after a block: `h + more`, and its norm for the next block."""
    return rows.add_and_norm(h_ND, more_ND, w_D, eps)
