"""A product of few rows with a tall matrix, as Triton kernels: it takes as long as reading the matrix.

The inner dimension is split over programs, whose sums a second kernel adds up in a fixed order: a row gives
the same bits among the same number of rows, which decides how the product is cut up. Of libraries' kernels
for such shapes those that split it likewise first clear memory.

Legend: N rows, K inner dimension, O outputs, S splits.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How a product is cut up: measured on H200, K = 16,384 and O = 7,168 (55 to 58 µs; the floor is 55)."""

    rows: int
    splits: int
    stages: int


_OUTPUTS, _INNER = 128, 64
"""Columns of a program, and what it reads of the inner dimension at once."""
_SHAPES = (_Shape(rows=16, splits=4, stages=3), _Shape(rows=64, splits=2, stages=5))
_TALL = 8192
"""From here on the inner dimension is long enough for splitting it to pay for the second kernel."""
_SUM_BLOCK = 1024


@triton.jit
def _partial_products(
    x,
    w,
    parts,
    num_rows,
    outputs,
    x_stride,
    split: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
) -> None:
    row, column = tl.arange(0, rows), tl.program_id(0) * columns + tl.arange(0, columns)
    inside = (row < num_rows)[:, None]
    first = tl.program_id(1) * split
    total = tl.zeros([rows, columns], tl.float32)
    for begin in range(0, split, depth):
        at = first + begin + tl.arange(0, depth)
        left = tl.load(x + row[:, None] * x_stride + at[None, :], mask=inside, other=0.0)
        right = tl.load(w + at[:, None].to(tl.int64) * outputs + column[None, :])
        total = tl.dot(left, right, total)
    cell = (tl.program_id(1) * num_rows + row)[:, None] * outputs + column[None, :]
    tl.store(parts + cell, total, mask=inside)


@triton.jit
def _add_parts(parts, out, size, splits: tl.constexpr, block: tl.constexpr) -> None:
    at = tl.program_id(0) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for split in tl.static_range(splits):
        total += tl.load(parts + split * size + at, mask=at < size, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < size)


def serves(x_NK: Tensor, w_KO: Tensor) -> bool:
    """Whether `product` takes these, and is faster than a library."""
    (rows, inner), outputs = x_NK.shape, w_KO.shape[1]
    return (
        x_NK.is_cuda
        and x_NK.dtype is torch.bfloat16
        and w_KO.dtype is torch.bfloat16
        and 0 < rows <= _SHAPES[-1].rows
        and inner >= _TALL
        and inner % (_SHAPES[0].splits * _INNER) == 0
        and outputs % _OUTPUTS == 0
        and x_NK.stride(1) == 1
        and w_KO.is_contiguous()
    )


def product(x_NK: Tensor, w_KO: Tensor) -> Tensor:
    """`x·W`, `[N, O]` in bf16, summed in fp32; of what `serves` accepts."""
    (num_rows, inner), outputs = x_NK.shape, w_KO.shape[1]
    shape = next(shape for shape in _SHAPES if num_rows <= shape.rows)
    parts_SNO = torch.empty(shape.splits, num_rows, outputs, dtype=torch.float32, device=x_NK.device)
    _partial_products[(outputs // _OUTPUTS, shape.splits)](
        x_NK,
        w_KO,
        parts_SNO,
        num_rows,
        outputs,
        x_NK.stride(0),
        split=inner // shape.splits,
        rows=shape.rows,
        columns=_OUTPUTS,
        depth=_INNER,
        num_stages=shape.stages,
        num_warps=4,
    )
    out_NO = x_NK.new_empty(num_rows, outputs)
    size = out_NO.numel()
    _add_parts[(triton.cdiv(size, _SUM_BLOCK),)](
        parts_SNO, out_NO, size, splits=shape.splits, block=_SUM_BLOCK
    )
    return out_NO
