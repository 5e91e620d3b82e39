"""Checks and arithmetic that every communicator shares, so that the backends cannot drift apart.

Invariant: a call that one backend refuses is refused by all, and a sum over ranks is taken in rank order
with the same rounding everywhere.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def row_bytes(x_NX: Tensor) -> int:
    """Bytes of one row (dim 0) of `x_NX`."""
    return x_NX.element_size() * x_NX.shape[1:].numel()


def as_bytes(x_X: Tensor) -> Tensor:
    """The tensor's memory as flat bytes; it must be contiguous."""
    return x_X.view(-1).view(torch.uint8)


def check_rows(x_NX: Tensor, rows: int, *, tag: str) -> None:
    """Refuse a tensor that is not contiguous or has not the number of rows that its counts announce."""
    if not x_NX.is_contiguous():
        raise ValueError(f"{tag}: rows must be contiguous, got strides {x_NX.stride()}; call .contiguous()")
    if x_NX.dim() == 0 or x_NX.shape[0] != rows:
        raise ValueError(f"{tag}: the counts announce {rows} rows, the tensor has shape {tuple(x_NX.shape)}")


def check_counts(counts: Sequence[int], size: int, *, tag: str) -> None:
    """Refuse counts that are negative or not one per rank."""
    if len(counts) != size or any(count < 0 for count in counts):
        raise ValueError(f"{tag}: need {size} counts ≥ 0, one per rank, got {list(counts)}")


def sum_in_rank_order(parts_NX: Sequence[Tensor]) -> Tensor:
    """Sum equal-shaped tensors from first to last; half types add up in fp32. The result is fresh.

    On GPUs one kernel where others are many: a decode step sums a hundred times.
    """
    first, *rest = parts_NX
    if not rest:
        return first.clone()
    if first.is_cuda:
        from splash_core.dist import triton_sums  # Triton is only where GPUs are

        if triton_sums.serves(parts_NX):
            return triton_sums.sum_parts(parts_NX)
    half = first.dtype in (torch.bfloat16, torch.float16)
    total_NX = torch.add(first.float() if half else first, rest[0])
    for part_NX in rest[1:]:
        total_NX += part_NX
    return total_NX.to(first.dtype) if half else total_NX


def offsets_of(counts: Sequence[int]) -> tuple[int, ...]:
    """Where each rank's rows start, and the total: `len(counts) + 1` numbers."""
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + count)
    return tuple(offsets)
