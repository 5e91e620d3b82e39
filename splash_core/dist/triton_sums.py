"""A sum over ranks as one Triton kernel that reads each rank's rows where they are, over links or not.

Legend: see `dist/comm.py`.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_PARTS = 8
"""Ranks of one host; a kernel's arguments are counted."""
_BLOCK = 1024


@triton.jit
def _add_part(total, part, at, inside, count: tl.constexpr, index: tl.constexpr):
    if index < count:
        total += tl.load(part + at, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def _sum(p0, p1, p2, p3, p4, p5, p6, p7, out, size, count: tl.constexpr, block: tl.constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < size
    total = tl.load(p0 + at, mask=inside, other=0.0).to(tl.float32)
    total = _add_part(total, p1, at, inside, count, 1)
    total = _add_part(total, p2, at, inside, count, 2)
    total = _add_part(total, p3, at, inside, count, 3)
    total = _add_part(total, p4, at, inside, count, 4)
    total = _add_part(total, p5, at, inside, count, 5)
    total = _add_part(total, p6, at, inside, count, 6)
    total = _add_part(total, p7, at, inside, count, 7)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def serves(parts_NX: Sequence[Tensor]) -> bool:
    """Whether `sum_parts` takes these."""
    return 1 < len(parts_NX) <= MOST_PARTS and all(
        part_NX.is_cuda
        and part_NX.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and part_NX.is_contiguous()
        for part_NX in parts_NX
    )


def sum_parts(parts_NX: Sequence[Tensor]) -> Tensor:
    """Equal-shaped tensors added up from first to last in fp32, rounded once: `sum_in_rank_order`'s bits."""
    first_NX = parts_NX[0]
    out_NX = torch.empty_like(first_NX)
    if size := out_NX.numel():
        padded = [*parts_NX, *[first_NX] * (MOST_PARTS - len(parts_NX))]
        blocks = triton.cdiv(size, _BLOCK)
        _sum[(blocks,)](*padded, out_NX, size, count=len(parts_NX), block=_BLOCK)
    return out_NX
