"""`PairKernels` as Triton kernels: what happens to (row, expert) pairs around the grouped products.

Everything is deterministic: places follow from counting, sums run in the order of a row's choices.

Legend: see `kernels/expert_pairs.py`.
"""
# pyright: reportMissingImports=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from splash_core.kernels.expert_pairs import TorchPairs

MAX_COUNTED_PAIRS = 8192
"""Up to here places are counted, P² comparisons in one launch; beyond, sorted, in several."""

_BLOCK = 64
_SPAN = 128
_DENSE_BLOCK = 1024
_COLUMNS = 2048
"""Columns of a row that one program handles."""


@triton.jit
def _order(
    ids,
    places,
    ends,
    num_pairs,
    first,
    num_experts,
    pair_blocks,
    block: tl.constexpr,
    span: tl.constexpr,
) -> None:
    # The first programs place pairs; the others find the ends of experts.
    at = tl.program_id(0) * block + tl.arange(0, block)
    of_pairs = at < pair_blocks * block
    is_pair = at < num_pairs
    expert = at - pair_blocks * block
    is_expert = (expert >= 0) & (expert < num_experts)
    mine = tl.load(ids + at, mask=is_pair, other=0).to(tl.int32) - first
    mine = tl.where((mine >= 0) & (mine < num_experts), mine, num_experts)
    # An expert's end is the place of a pair that would come after all of its pairs.
    mine = tl.where(of_pairs, mine, expert)
    tie = tl.where(of_pairs, at, num_pairs)
    before = tl.zeros([block], tl.int32)
    for start in range(0, num_pairs, span):
        other = start + tl.arange(0, span)
        theirs = tl.load(ids + other, mask=other < num_pairs, other=0).to(tl.int32) - first
        theirs = tl.where((theirs >= 0) & (theirs < num_experts), theirs, num_experts)
        theirs = tl.where(other < num_pairs, theirs, num_experts + 1)
        same = (theirs[None, :] == mine[:, None]) & (other[None, :] < tie[:, None])
        before += tl.sum(((theirs[None, :] < mine[:, None]) | same).to(tl.int32), axis=1)
    tl.store(places + at, before, mask=is_pair)
    tl.store(ends + expert, before, mask=is_expert)


@triton.jit
def _dense_places(
    ids,
    places,
    end,
    num_pairs,
    num_rows,
    first,
    num_experts,
    choices: tl.constexpr,
    block: tl.constexpr,
) -> None:
    pair = tl.program_id(0) * block + tl.arange(0, block)
    inside = pair < num_pairs
    local = tl.load(ids + pair, mask=inside, other=-1).to(tl.int32) - first
    here = (local >= 0) & (local < num_experts)
    beyond = num_experts * num_rows
    tl.store(places + pair, tl.where(here, local * num_rows + pair // choices, beyond), mask=inside)
    tl.store(end, beyond)


@triton.jit
def _spread(
    x,
    places,
    last_end,
    out,
    width,
    choices: tl.constexpr,
    block: tl.constexpr,
) -> None:
    pair = tl.program_id(0).to(tl.int64)
    place = tl.load(places + pair).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    wanted = (at < width) & (place < tl.load(last_end))
    values = tl.load(x + (pair // choices) * width + at, mask=wanted)
    tl.store(out + place * width + at, values, mask=wanted)


@triton.jit
def _silu_mul(
    gate_up,
    last_end,
    out,
    width,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    wanted = (at < width) & (row < tl.load(last_end))
    gate = tl.load(gate_up + row * 2 * width + at, mask=wanted, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=wanted, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + at, value.to(out.dtype.element_ty), mask=wanted)


@triton.jit
def _combine(
    y,
    places,
    weights,
    last_end,
    out,
    width,
    choices: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    num_local = tl.load(last_end)
    total = tl.load(out + row * width + at, mask=inside, other=0.0).to(tl.float32)
    for choice in tl.static_range(choices):
        place = tl.load(places + row * choices + choice).to(tl.int64)
        weight = tl.load(weights + row * choices + choice)
        here = inside & (place < num_local)
        total += weight * tl.load(y + place * width + at, mask=here, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, total.to(out.dtype.element_ty), mask=inside)


class TritonPairs:
    """See the module."""

    def __init__(self) -> None:
        self._sorting = TorchPairs()

    def order(self, ids_NK: Tensor, first: int, num_experts: int) -> tuple[Tensor, Tensor]:
        """As the protocol says."""
        num_pairs = ids_NK.numel()
        if num_pairs > MAX_COUNTED_PAIRS:
            return self._sorting.order(ids_NK, first, num_experts)
        ids_NK = ids_NK.contiguous()
        places_NK = torch.empty(ids_NK.shape, dtype=torch.int32, device=ids_NK.device)
        ends_E = torch.empty(num_experts, dtype=torch.int32, device=ids_NK.device)
        pair_blocks = triton.cdiv(num_pairs, _BLOCK)
        grid = (pair_blocks + triton.cdiv(num_experts, _BLOCK),)
        _order[grid](
            ids_NK,
            places_NK,
            ends_E,
            num_pairs,
            first,
            num_experts,
            pair_blocks,
            block=_BLOCK,
            span=_SPAN,
        )
        return places_NK, ends_E

    def dense_places(self, ids_NK: Tensor, first: int, num_experts: int) -> tuple[Tensor, Tensor]:
        """As the protocol says."""
        ids_NK = ids_NK.contiguous()
        num_rows, choices = ids_NK.shape
        places_NK = torch.empty(ids_NK.shape, dtype=torch.int32, device=ids_NK.device)
        end = torch.empty(1, dtype=torch.int32, device=ids_NK.device)
        grid = (triton.cdiv(ids_NK.numel(), _DENSE_BLOCK),)
        _dense_places[grid](
            ids_NK,
            places_NK,
            end,
            ids_NK.numel(),
            num_rows,
            first,
            num_experts,
            choices=choices,
            block=_DENSE_BLOCK,
        )
        return places_NK, end

    def spread(self, x_ND: Tensor, places_NK: Tensor, ends_E: Tensor) -> Tensor:
        """As the protocol says."""
        x_ND = x_ND.contiguous()
        num_pairs, width = places_NK.numel(), x_ND.shape[1]
        out_PD = x_ND.new_empty(num_pairs, width)
        grid, block = _grid(num_pairs, width)
        _spread[grid](x_ND, places_NK, ends_E[-1:], out_PD, width, choices=places_NK.shape[1], block=block)
        return out_PD

    def silu_mul(self, gate_up_PX: Tensor, ends_E: Tensor) -> Tensor:
        """As the protocol says."""
        assert gate_up_PX.is_contiguous(), f"strides {gate_up_PX.stride()}"
        num_pairs, width = gate_up_PX.shape[0], gate_up_PX.shape[1] // 2
        out_PI = gate_up_PX.new_empty(num_pairs, width)
        grid, block = _grid(num_pairs, width)
        _silu_mul[grid](gate_up_PX, ends_E[-1:], out_PI, width, block=block)
        return out_PI

    def combine(
        self, out_ND: Tensor, y_PD: Tensor, places_NK: Tensor, weights_NK: Tensor, ends_E: Tensor
    ) -> None:
        """As the protocol says."""
        assert out_ND.is_contiguous(), f"outputs of strides {out_ND.stride()}"
        assert y_PD.is_contiguous(), f"expert outputs of strides {y_PD.stride()}"
        grid, block = _grid(*out_ND.shape)
        _combine[grid](
            y_PD,
            places_NK,
            weights_NK.contiguous(),
            ends_E[-1:],
            out_ND,
            out_ND.shape[1],
            choices=places_NK.shape[1],
            block=block,
        )


def _grid(rows: int, width: int) -> tuple[tuple[int, int], int]:
    block = min(_COLUMNS, triton.next_power_of_2(width))
    return (rows, triton.cdiv(width, block)), block
