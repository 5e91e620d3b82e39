"""`kernels/rows.py` on GPUs, as Triton kernels: each reads and writes its rows once, and computes in fp32.

Legend: see `kernels/rows.py`.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 2048
_HEADS = 8


@triton.jit
def _rotate_in_place(
    x,
    cos,
    sin,
    row_stride,
    head_stride,
    num_heads,
    pairs: tl.constexpr,
    interleaved: tl.constexpr,
    heads: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * heads + tl.arange(0, heads)
    pair = tl.arange(0, block)
    inside = (head < num_heads)[:, None] & (pair < pairs)[None, :]
    base = x + row * row_stride + head[:, None] * head_stride
    if interleaved:
        from_first, from_second = 2 * pair, 2 * pair + 1
    else:
        from_first, from_second = pair, pair + pairs
    first = tl.load(base + from_first[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(base + from_second[None, :], mask=inside, other=0.0).to(tl.float32)
    angle = row * pairs + pair
    cosine = tl.load(cos + angle, mask=pair < pairs, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(sin + angle, mask=pair < pairs, other=0.0).to(tl.float32)[None, :]
    low = first * cosine - second * sine
    high = second * cosine + first * sine
    # Interleaved pairs land where other threads read: nobody writes before all have read.
    tl.debug_barrier()
    tl.store(base + pair[None, :], low.to(x.dtype.element_ty), mask=inside)
    tl.store(base + pair[None, :] + pairs, high.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul(
    gate_up,
    out,
    width,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + at, value.to(out.dtype.element_ty), mask=inside)


def rotate_in_place(x_NHp: Tensor, angles: tuple[Tensor, Tensor], *, interleaved: bool) -> None:
    """As `rows.rotate`, into the argument; rows and heads may be any stride apart."""
    num_rows, num_heads, width = x_NHp.shape
    cos, sin = angles
    assert x_NHp.stride(2) == 1, f"heads of strides {x_NHp.stride()}"
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    if num_rows:
        _rotate_in_place[(num_rows, triton.cdiv(num_heads, _HEADS))](
            x_NHp,
            cos,
            sin,
            x_NHp.stride(0),
            x_NHp.stride(1),
            num_heads,
            pairs=width // 2,
            interleaved=interleaved,
            heads=_HEADS,
            block=triton.next_power_of_2(width // 2),
            num_warps=1,
        )


def silu_mul(gate_up_NX: Tensor) -> Tensor:
    """As `rows.silu_mul`."""
    assert gate_up_NX.is_contiguous(), f"rows of strides {gate_up_NX.stride()}"
    num_rows, width = gate_up_NX.shape[0], gate_up_NX.shape[1] // 2
    out_NI = gate_up_NX.new_empty(num_rows, width)
    if out_NI.numel():
        block = min(_COLUMNS, triton.next_power_of_2(width))
        _silu_mul[(num_rows, triton.cdiv(width, block))](gate_up_NX, out_NI, width, block=block)
    return out_NI
