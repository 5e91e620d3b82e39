"""The routed experts of one rank as grouped or batched matrix products, without waiting for the device.

A *pair* is one (row, choice). Pairs are put in order: those of the rank's first expert, of its second, …,
then those of other ranks' experts, which nobody computes. How many a rank has is known only on the device,
so tensors have room for all P pairs and what lies beyond the last local pair is never read.

Legend: N rows, K choices per row, P = N·K pairs, D hidden, I width of an FFN, E_j experts of this rank.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_core.kernels.base import Experts
from splash_core.kernels.ffn import gated_ffn
from splash_core.units import DENSE_EXPERT_ROWS

ROWS_AT_ONCE = 8192
"""Rows whose pairs are held at once: bounds memory, and keeps products large."""


class PairKernels(Protocol):
    """What happens to pairs around the matrix products."""

    def order(self, ids_NK: Tensor, first: int, num_experts: int) -> tuple[Tensor, Tensor]:
        """Put the pairs in order.

        Returns:
            places_NK, int64 or int32: each pair's place; ends_E, int32: where each expert's pairs end.
        """
        ...

    def dense_places(self, ids_NK: Tensor, first: int, num_experts: int) -> tuple[Tensor, Tensor]:
        """Places where every local expert has computed every row: those of expert e begin at e·N.

        Returns:
            places_NK, int64 or int32 (E_j·N for a pair of another rank's expert); and `[E_j·N]`, int32.
        """
        ...

    def spread(self, x_ND: Tensor, places_NK: Tensor, ends_E: Tensor) -> Tensor:
        """`[P, D]`: each local pair's row at the pair's place."""
        ...

    def silu_mul(self, gate_up_PX: Tensor, ends_E: Tensor) -> Tensor:
        """`[P, I]`: `silu(gate)·up` of the local pairs; X = 2·I."""
        ...

    def combine(
        self, out_ND: Tensor, y_PD: Tensor, places_NK: Tensor, weights_NK: Tensor, ends_E: Tensor
    ) -> None:
        """`out[n] += Σ_k weights[n, k]·y[places[n, k]]` over local pairs, in the order of k."""
        ...


def grouped_experts(
    out_ND: Tensor,
    x_ND: Tensor,
    ids_NK: Tensor,
    weights_NK: Tensor,
    experts: Experts,
    pairs: PairKernels,
) -> None:
    """As `Kernels.moe_experts` says; bf16 only (`grouped_mm`)."""
    if experts.gate_up_EXD.shape[0] == 0:
        return
    for start in range(0, x_ND.shape[0], ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        _some_rows(out_ND[part], x_ND[part], ids_NK[part], weights_NK[part], experts, pairs)


def wants_dense(*, num_rows: int, choices: int, num_in_layer: int) -> bool:
    """True where computing every local expert on every row is the faster way.

    Few rows cost no more than the reading of weights, which a batched product does at the memory's full
    rate and a grouped one at two thirds of it (measured on H200, 8 experts of 7168 × 2048: 162 µs against
    287 with 2 rows, 184 against 246 with 128). It pays where most experts are chosen by some row anyway.
    """
    return num_rows <= DENSE_EXPERT_ROWS and num_rows * choices >= num_in_layer


def dense_experts(
    out_ND: Tensor,
    x_ND: Tensor,
    ids_NK: Tensor,
    weights_NK: Tensor,
    experts: Experts,
    pairs: PairKernels,
) -> None:
    """As `Kernels.moe_experts` says: every local expert on every row, as two batched products."""
    num_experts, rows = experts.gate_up_EXD.shape[0], x_ND.shape[0]
    if num_experts == 0 or rows == 0:
        return
    places_NK, ends = pairs.dense_places(ids_NK, experts.first, num_experts)
    gate_up_ENX = torch.bmm(x_ND.expand(num_experts, -1, -1), experts.gate_up_EXD.mT)
    hidden_PI = pairs.silu_mul(gate_up_ENX.view(num_experts * rows, -1), ends)
    y_END = torch.bmm(hidden_PI.view(num_experts, rows, -1), experts.down_EDI.mT)
    pairs.combine(out_ND, y_END.view(num_experts * rows, -1), places_NK, weights_NK, ends)


def _some_rows(
    out_ND: Tensor,
    x_ND: Tensor,
    ids_NK: Tensor,
    weights_NK: Tensor,
    experts: Experts,
    pairs: PairKernels,
) -> None:
    places_NK, ends_E = pairs.order(ids_NK, experts.first, experts.gate_up_EXD.shape[0])
    x_PD = pairs.spread(x_ND, places_NK, ends_E)
    gate_up_PX = F.grouped_mm(x_PD, experts.gate_up_EXD.mT, offs=ends_E)
    del x_PD  # its memory serves the outputs, which have the same shape
    hidden_PI = pairs.silu_mul(gate_up_PX, ends_E)
    y_PD = F.grouped_mm(hidden_PI, experts.down_EDI.mT, offs=ends_E)
    pairs.combine(out_ND, y_PD, places_NK, weights_NK, ends_E)


def masked_experts(
    out_ND: Tensor, x_ND: Tensor, ids_NK: Tensor, weights_NK: Tensor, experts: Experts
) -> None:
    """As `Kernels.moe_experts` says, in any element type: every expert computes every row.

    For correctness where no grouped product exists: flops are those of a dense layer of all experts.
    """
    for local in range(experts.gate_up_EXD.shape[0]):
        chosen_NK = ids_NK == experts.first + local
        weight_N1 = weights_NK.masked_fill(~chosen_NK, 0.0).sum(dim=-1, keepdim=True)
        y_ND = gated_ffn(x_ND, experts.gate_up_EXD[local], experts.down_EDI[local])
        out_ND += (y_ND * weight_N1).to(out_ND.dtype)


class TorchPairs:
    """`PairKernels` in plain torch: the truth for faster ones."""

    def order(self, ids_NK: Tensor, first: int, num_experts: int) -> tuple[Tensor, Tensor]:
        """As the protocol says."""
        local_P = ids_NK.flatten() - first
        local_P = torch.where((local_P >= 0) & (local_P < num_experts), local_P, num_experts)
        sorted_P, order_P = local_P.sort(stable=True)
        places_P = torch.empty_like(order_P)
        places_P[order_P] = torch.arange(len(order_P), device=ids_NK.device)
        wanted_E = torch.arange(num_experts, device=ids_NK.device)
        ends_E = torch.searchsorted(sorted_P, wanted_E, right=True, out_int32=True)
        return places_P.view_as(ids_NK), ends_E

    def dense_places(self, ids_NK: Tensor, first: int, num_experts: int) -> tuple[Tensor, Tensor]:
        """As the protocol says."""
        rows = ids_NK.shape[0]
        local_NK = ids_NK - first
        places_NK = local_NK * rows + torch.arange(rows, device=ids_NK.device)[:, None]
        is_local_NK = (local_NK >= 0) & (local_NK < num_experts)
        end = torch.full((1,), num_experts * rows, dtype=torch.int32, device=ids_NK.device)
        return torch.where(is_local_NK, places_NK, num_experts * rows), end

    def spread(self, x_ND: Tensor, places_NK: Tensor, ends_E: Tensor) -> Tensor:
        """As the protocol says."""
        del ends_E
        x_PD = x_ND.new_empty(places_NK.numel(), x_ND.shape[1])
        x_PD[places_NK] = x_ND[:, None].expand(-1, places_NK.shape[1], -1)
        return x_PD

    def silu_mul(self, gate_up_PX: Tensor, ends_E: Tensor) -> Tensor:
        """As the protocol says."""
        del ends_E
        gate_PI, up_PI = gate_up_PX.chunk(2, dim=-1)
        return F.silu(gate_PI) * up_PI

    def combine(
        self, out_ND: Tensor, y_PD: Tensor, places_NK: Tensor, weights_NK: Tensor, ends_E: Tensor
    ) -> None:
        """As the protocol says."""
        total_ND = out_ND.to(weights_NK.dtype)
        for choice in range(places_NK.shape[1]):
            places_N = places_NK[:, choice]
            # What lies beyond the local pairs may be anything, NaN included: it is left out, not weighted 0.
            part_ND = y_PD[places_N.clamp(max=y_PD.shape[0] - 1)] * weights_NK[:, choice, None]
            total_ND += torch.where((places_N < ends_E[-1])[:, None], part_ND, 0.0)
        out_ND.copy_(total_ND)
