"""Moving KV rows and pages, as Triton kernels.

Slots are int64, so that offsets are: an arena is larger than 2³¹ elements. What has no slot (a negative
one) is not touched.

Legend: S slots, P page size, C = r + p, M pages, N rows.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

import triton
import triton.language as tl
from torch import Tensor

_MAX_BLOCK = 4096
"""Elements that one program copies: 32 a thread in bf16, as four 16-byte accesses."""


@triton.jit
def _append_rows(
    pages,
    rows,
    slots,
    offsets,
    page_stride,
    row_stride,
    width: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    offset = tl.load(offsets + row)
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(rows + row * row_stride + at, mask=inside)
    tl.store(pages + slot * page_stride + offset * width + at, values, mask=inside & (slot >= 0))


@triton.jit
def _gather_pages(
    pages,
    slots,
    out,
    page_stride,
    size,
    block: tl.constexpr,
) -> None:
    page = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + page)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < size
    values = tl.load(pages + slot * page_stride + at, mask=inside)
    tl.store(out + page * size + at, values, mask=inside)


@triton.jit
def _scatter_pages(
    pages,
    slots,
    values,
    page_stride,
    size,
    block: tl.constexpr,
) -> None:
    page = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + page)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < size
    loaded = tl.load(values + page * size + at, mask=inside)
    tl.store(pages + slot * page_stride + at, loaded, mask=inside & (slot >= 0))


def append_rows(pages_SPC: Tensor, rows_NC: Tensor, slots_N: Tensor, offsets_N: Tensor) -> None:
    """`pages[slots[i], offsets[i]] = rows[i]` for each row with a slot ≥ 0.

    Args:
        pages_SPC: one layer's pages; a page is contiguous, pages may be any stride apart.
        rows_NC: one row per place; rows may be any stride apart.
        slots_N: int64.
        offsets_N: int64, in the page.
    """
    num_rows, width = rows_NC.shape
    if num_rows == 0:
        return
    assert pages_SPC[0].is_contiguous(), f"pages of strides {pages_SPC.stride()}"
    assert rows_NC.stride(1) == 1, f"rows of strides {rows_NC.stride()}"
    assert len(slots_N) == num_rows, f"{num_rows} rows for {len(slots_N)} places"
    _append_rows[(num_rows,)](
        pages_SPC,
        rows_NC,
        slots_N,
        offsets_N,
        pages_SPC.stride(0),
        rows_NC.stride(0),
        width=width,
        block=triton.next_power_of_2(width),
    )


def gather_pages(pages: Tensor, slots_M: Tensor, out: Tensor | None = None) -> Tensor:
    """`pages[slots]`, contiguous, into `out` if it is given; slots are int64 and ≥ 0."""
    if out is None:
        out = pages.new_empty(len(slots_M), *pages.shape[1:])
    assert out.is_contiguous(), f"out of strides {out.stride()}"
    assert out.shape == (len(slots_M), *pages.shape[1:]), f"{len(slots_M)} pages into {out.shape}"
    if out.numel():
        grid, size, block = _grid(pages, slots_M)
        _gather_pages[grid](pages, slots_M, out, pages.stride(0), size, block=block)
    return out


def scatter_pages(pages: Tensor, slots_M: Tensor, values: Tensor) -> None:
    """`pages[slots] = values`; slots are int64, and pages of a slot < 0 are left out."""
    assert values.is_contiguous(), f"values of strides {values.stride()}"
    assert values.shape == (len(slots_M), *pages.shape[1:]), f"{values.shape} into {len(slots_M)} pages"
    if values.numel():
        grid, size, block = _grid(pages, slots_M)
        _scatter_pages[grid](pages, slots_M, values, pages.stride(0), size, block=block)


def _grid(pages: Tensor, slots_M: Tensor) -> tuple[tuple[int, int], int, int]:
    assert pages[0].is_contiguous(), f"pages of strides {pages.stride()}"
    size = pages[0].numel()
    block = min(_MAX_BLOCK, triton.next_power_of_2(size))
    return (len(slots_M), triton.cdiv(size, block)), size, block
