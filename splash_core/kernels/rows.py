"""What happens to rows between matrix products: plain torch on CPUs, one Triton kernel each on GPUs.

A decode step has hundreds of these on few rows, so on a GPU their number is what they cost. On CPUs, and in
fp64 anywhere, the order of operations is the reference models' own.

Legend: N rows, D width, H heads, C = r + p (a latent row), p rope dims, P = p/2 frequencies.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_core.kernels.dtypes import at_least_fp32

Angles = tuple[Tensor, Tensor]
"""cos and sin of some rows, `[N, P]` each."""


def rms_norm(x_ND: Tensor, w_D: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x²) + eps) · w` over the last dim, in at least fp32; result in x's dtype."""
    if _on_gpu(x_ND):
        from splash_core.kernels import triton_norms

        return triton_norms.rms_norm(x_ND, w_D, eps)
    h_ND = x_ND.to(at_least_fp32(x_ND.dtype))
    scale_N1 = torch.rsqrt(h_ND.square().mean(-1, keepdim=True) + eps)
    return w_D * (h_ND * scale_N1).to(x_ND.dtype)


def add_and_norm(h_ND: Tensor, more_ND: Tensor, w_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`h + more`, and that normalised as `rms_norm` does."""
    if _on_gpu(h_ND):
        from splash_core.kernels import triton_norms

        return triton_norms.add_and_norm(h_ND, more_ND, w_D, eps)
    sum_ND = h_ND + more_ND
    return sum_ND, rms_norm(sum_ND, w_D, eps)


def rotate(x: Tensor, angles: Angles, *, interleaved: bool) -> Tensor:
    """Rotate `[N, H, p]` or `[N, p]` by the rows' angles; the result is half-split, in x's dtype."""
    cos, sin = angles
    if x.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x.chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)


def rotate_tail(q_NHD: Tensor, angles: Angles, *, start: int, interleaved: bool) -> Tensor:
    """Heads with their dims from `start` on rotated. The argument is given up: the result may be it."""
    if _on_gpu(q_NHD):
        from splash_core.kernels import triton_rows

        triton_rows.rotate_in_place(q_NHD[..., start:], angles, interleaved=interleaved)
        return q_NHD
    rotated = rotate(q_NHD[..., start:], angles, interleaved=interleaved)
    return torch.cat([q_NHD[..., :start], rotated], dim=-1)


def norm_and_rotate(rows_NC: Tensor, w_r: Tensor, eps: float, angles: Angles, *, interleaved: bool) -> Tensor:
    """Latent rows: the first r dims normalised, the others rotated."""
    if _on_gpu(rows_NC):
        from splash_core.kernels import triton_norms

        return triton_norms.norm_and_rotate(rows_NC, w_r, eps, angles, interleaved=interleaved)
    latent = w_r.shape[0]
    rotated = rotate(rows_NC[:, latent:], angles, interleaved=interleaved)
    return torch.cat([rms_norm(rows_NC[:, :latent], w_r, eps), rotated], dim=-1)


def norm_latents(
    down_NX: Tensor, w_q: Tensor, w_r: Tensor, eps: float, angles: Angles, *, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """Rows that hold q_a, then a latent row: `[N, Q]` normalised, and `[N, C]` as `norm_and_rotate` does."""
    width = w_q.shape[0]
    if _on_gpu(down_NX):
        from splash_core.kernels import triton_norms

        q_NQ = down_NX.new_empty(down_NX.shape[0], width)
        kv_NC = down_NX.new_empty(down_NX.shape[0], down_NX.shape[1] - width)
        triton_norms.norm_latents(
            down_NX, w_q, w_r, eps, angles, interleaved=interleaved, q_out=q_NQ, kv_out=kv_NC
        )
        return q_NQ, kv_NC
    kv_NC = norm_and_rotate(down_NX[:, width:], w_r, eps, angles, interleaved=interleaved)
    return rms_norm(down_NX[:, :width], w_q, eps), kv_NC


def norm_joined_latents(
    down_NX: Tensor, w_q: Tensor, w_r: Tensor, eps: float, angles: Angles, *, interleaved: bool
) -> Tensor:
    """As `norm_latents`, `[N, Q + C]`: both beside each other."""
    if _on_gpu(down_NX):
        from splash_core.kernels import triton_norms

        out_NX = torch.empty_like(down_NX)
        q_NQ, kv_NC = out_NX[:, : w_q.shape[0]], out_NX[:, w_q.shape[0] :]
        triton_norms.norm_latents(
            down_NX, w_q, w_r, eps, angles, interleaved=interleaved, q_out=q_NQ, kv_out=kv_NC
        )
        return out_NX
    return torch.cat(norm_latents(down_NX, w_q, w_r, eps, angles, interleaved=interleaved), dim=-1)


def silu_mul(gate_up_NX: Tensor) -> Tensor:
    """`silu(gate)·up`, `[N, X/2]`, of rows that hold gate, then up."""
    if _on_gpu(gate_up_NX):
        from splash_core.kernels import triton_rows

        return triton_rows.silu_mul(gate_up_NX)
    gate_NI, up_NI = gate_up_NX.chunk(2, dim=-1)
    return F.silu(gate_NI) * up_NI


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda and x.dtype is not torch.float64
