"""Merging partial attention outputs by log-sum-exp, as a Triton kernel.

Legend: T parts, N rows, H heads, v width of a value.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

import triton
import triton.language as tl
from torch import Tensor

_ROWS = 8
"""(row, head) pairs per program."""


@triton.jit
def _merge(
    outs,
    lses,
    merged,
    num_rows,
    parts: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    col = tl.arange(0, block)
    inside = row < num_rows
    whole = inside[:, None] & (col < width)[None, :]
    top = tl.full([rows], float("-inf"), tl.float32)
    for part in tl.static_range(parts):
        lse = tl.load(lses + part * num_rows + row, mask=inside, other=float("-inf"))
        top = tl.maximum(top, lse)
    # A row that no part saw: exp(-inf - 0) is 0, exp(-inf - -inf) would be NaN.
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros([rows], tl.float32)
    sums = tl.zeros([rows, block], tl.float32)
    for part in tl.static_range(parts):
        lse = tl.load(lses + part * num_rows + row, mask=inside, other=float("-inf"))
        weight = tl.exp(lse - top)
        total += weight
        place = (part * num_rows + row)[:, None] * width + col[None, :]
        sums += weight[:, None] * tl.load(outs + place, mask=whole, other=0.0).to(tl.float32)
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(merged + row[:, None] * width + col[None, :], sums.to(merged.dtype.element_ty), mask=whole)


def merge_by_lse(out_TNHv: Tensor, lse_TNH: Tensor) -> Tensor:
    """As `reference.merge_by_lse`, with weights and sums in fp32; `lse_TNH` is fp32."""
    parts, num_rows, heads, width = out_TNHv.shape
    assert out_TNHv.is_contiguous(), f"outputs of strides {out_TNHv.stride()}"
    assert lse_TNH.is_contiguous(), f"log-sum-exps of strides {lse_TNH.stride()}"
    merged = out_TNHv.new_empty(num_rows, heads, width)
    if merged.numel():
        _merge[(triton.cdiv(num_rows * heads, _ROWS),)](
            out_TNHv,
            lse_TNH,
            merged,
            num_rows * heads,
            parts=parts,
            width=width,
            rows=_ROWS,
            block=triton.next_power_of_2(width),
        )
    return merged
