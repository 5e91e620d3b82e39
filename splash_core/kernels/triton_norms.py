"""RMS norms on GPUs, with what comes right before or after them, as Triton kernels; in fp32 within.

Legend: see `kernels/rows.py`; Q width of a q_a row, X = Q + C.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm_row(source, weight, target, eps, width: tl.constexpr, block: tl.constexpr) -> None:
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    normed = values * tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    # Rounded before the weight is applied, as the reference models do.
    normed = normed.to(target.dtype.element_ty).to(tl.float32)
    normed *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + at, normed.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _rms_norm(x, weight, out, row_stride, eps, width: tl.constexpr, block: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    _norm_row(x + row * row_stride, weight, out + row * width, eps, width, block)


@triton.jit
def _add_and_norm(
    h,
    more,
    weight,
    total,
    out,
    eps,
    width: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.arange(0, block)
    inside = at < width
    cell = tl.program_id(0).to(tl.int64) * width + at
    values = tl.load(h + cell, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(more + cell, mask=inside, other=0.0).to(tl.float32)
    # Rounded as it is stored: the norm is that of the stream, whichever kernel takes it.
    summed = values.to(total.dtype.element_ty)
    tl.store(total + cell, summed, mask=inside)
    values = summed.to(tl.float32)
    normed = values * tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    normed = normed.to(out.dtype.element_ty).to(tl.float32)
    normed *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + cell, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_row(
    source, cos, sin, target, pairs: tl.constexpr, interleaved: tl.constexpr, block: tl.constexpr
) -> None:
    pair = tl.arange(0, block)
    is_pair = pair < pairs
    if interleaved:
        from_first, from_second = 2 * pair, 2 * pair + 1
    else:
        from_first, from_second = pair, pair + pairs
    first = tl.load(source + from_first, mask=is_pair, other=0.0).to(tl.float32)
    second = tl.load(source + from_second, mask=is_pair, other=0.0).to(tl.float32)
    cosine = tl.load(cos + pair, mask=is_pair, other=0.0).to(tl.float32)
    sine = tl.load(sin + pair, mask=is_pair, other=0.0).to(tl.float32)
    low = first * cosine - second * sine
    high = second * cosine + first * sine
    tl.store(target + pair, low.to(target.dtype.element_ty), mask=is_pair)
    tl.store(target + pairs + pair, high.to(target.dtype.element_ty), mask=is_pair)


@triton.jit
def _norm_and_rotate(
    rows,
    weight,
    cos,
    sin,
    out,
    row_stride,
    out_stride,
    eps,
    latent: tl.constexpr,
    pairs: tl.constexpr,
    interleaved: tl.constexpr,
    latent_block: tl.constexpr,
    pair_block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    source, target, angle = rows + row * row_stride, out + row * out_stride, row * pairs
    _norm_row(source, weight, target, eps, latent, latent_block)
    _rotate_row(source + latent, cos + angle, sin + angle, target + latent, pairs, interleaved, pair_block)


@triton.jit
def _norm_latents(
    rows,
    q_weight,
    kv_weight,
    cos,
    sin,
    q_out,
    kv_out,
    row_stride,
    q_stride,
    kv_stride,
    eps,
    query: tl.constexpr,
    latent: tl.constexpr,
    pairs: tl.constexpr,
    interleaved: tl.constexpr,
    query_block: tl.constexpr,
    latent_block: tl.constexpr,
    pair_block: tl.constexpr,
) -> None:
    """Two programs a row: one for the query's part, one for the latent's."""
    row = tl.program_id(0).to(tl.int64)
    source = rows + row * row_stride
    if tl.program_id(1) == 0:
        _norm_row(source, q_weight, q_out + row * q_stride, eps, query, query_block)
    else:
        source += query
        target, angle = kv_out + row * kv_stride, row * pairs
        _norm_row(source, kv_weight, target, eps, latent, latent_block)
        _rotate_row(
            source + latent, cos + angle, sin + angle, target + latent, pairs, interleaved, pair_block
        )


def rms_norm(x_ND: Tensor, w_D: Tensor, eps: float) -> Tensor:
    """As `rows.rms_norm`; rows may be any stride apart."""
    num_rows, width = x_ND.shape
    assert x_ND.stride(1) == 1, f"rows of strides {x_ND.stride()}"
    out_ND = x_ND.new_empty(num_rows, width)
    if num_rows:
        block = triton.next_power_of_2(width)
        _rms_norm[(num_rows,)](
            x_ND,
            w_D,
            out_ND,
            x_ND.stride(0),
            eps,
            width=width,
            block=block,
            num_warps=_warps(block),
        )
    return out_ND


def add_and_norm(h_ND: Tensor, more_ND: Tensor, w_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `rows.add_and_norm`."""
    num_rows, width = h_ND.shape
    assert h_ND.is_contiguous()
    assert more_ND.is_contiguous()
    total_ND, out_ND = torch.empty_like(h_ND), torch.empty_like(h_ND)
    if num_rows:
        block = triton.next_power_of_2(width)
        _add_and_norm[(num_rows,)](
            h_ND, more_ND, w_D, total_ND, out_ND, eps, width=width, block=block, num_warps=_warps(block)
        )
    return total_ND, out_ND


def _warps(block: int) -> int:
    return min(max(block // 512, 1), 16)


def norm_and_rotate(
    rows_NC: Tensor, w_r: Tensor, eps: float, angles: tuple[Tensor, Tensor], *, interleaved: bool
) -> Tensor:
    """As `rows.norm_and_rotate`; rows may be any stride apart."""
    num_rows, width = rows_NC.shape
    latent, (cos, sin) = w_r.shape[0], angles
    pairs = (width - latent) // 2
    assert rows_NC.stride(1) == 1, f"rows of strides {rows_NC.stride()}"
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    out_NC = rows_NC.new_empty(num_rows, width)
    if num_rows:
        _norm_and_rotate[(num_rows,)](
            rows_NC,
            w_r,
            cos,
            sin,
            out_NC,
            rows_NC.stride(0),
            out_NC.stride(0),
            eps,
            latent=latent,
            pairs=pairs,
            interleaved=interleaved,
            latent_block=triton.next_power_of_2(latent),
            pair_block=triton.next_power_of_2(pairs),
            num_warps=2,
        )
    return out_NC


def norm_latents(
    down_NX: Tensor,
    w_q: Tensor,
    w_r: Tensor,
    eps: float,
    angles: tuple[Tensor, Tensor],
    *,
    interleaved: bool,
    q_out: Tensor,
    kv_out: Tensor,
) -> None:
    """As `rows.norm_latents`, into `q_out` and `kv_out`, whose rows may be any stride apart."""
    num_rows, (cos, sin) = down_NX.shape[0], angles
    query, latent = w_q.shape[0], w_r.shape[0]
    pairs = (down_NX.shape[1] - query - latent) // 2
    assert down_NX.stride(1) == q_out.stride(1) == kv_out.stride(1) == 1
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    if num_rows:
        _norm_latents[(num_rows, 2)](
            down_NX,
            w_q,
            w_r,
            cos,
            sin,
            q_out,
            kv_out,
            down_NX.stride(0),
            q_out.stride(0),
            kv_out.stride(0),
            eps,
            query=query,
            latent=latent,
            pairs=pairs,
            interleaved=interleaved,
            query_block=triton.next_power_of_2(query),
            latent_block=triton.next_power_of_2(latent),
            pair_block=triton.next_power_of_2(pairs),
            num_warps=4,
        )
