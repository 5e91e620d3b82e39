"""Kernels in plain torch: exact on any device, fast on CPUs, and the truth that others are tested against.

Legend: see `kernels/base.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splash_core.kernels import reference
from splash_core.kernels.base import A, B, Experts, IntArray, WritePlaces
from splash_core.kernels.ffn import gated_ffn
from splash_core.layout.ownership import NO_SLOT


class TorchKernels:
    """See the module.

    Args:
        device: where tensors live.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def upload(self, values: NDArray[Any]) -> Tensor:
        """As the protocol says."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def write_places(self, slots_N: IntArray, offsets_N: IntArray) -> WritePlaces:
        """Rows without a slot are left out once, here."""
        kept = (slots_N != NO_SLOT).nonzero()[0]
        return WritePlaces(
            slots_N=self.upload(slots_N[kept]),
            offsets_N=self.upload(offsets_N[kept]),
            rows_N=self.upload(kept),
        )

    def append_rows(self, pages_SPC: Tensor, rows_NC: Tensor, places: WritePlaces) -> None:
        """As the protocol says."""
        if places.slots_N.shape[0]:
            pages_SPC[places.slots_N, places.offsets_N] = rows_NC[places.rows_N]

    def gather_pages(self, pages: Tensor, slots_M: Tensor, out: Tensor | None = None) -> Tensor:
        """As the protocol says."""
        if out is None:
            return pages[slots_M]
        return torch.index_select(pages, 0, slots_M, out=out)

    def scatter_pages(self, pages: Tensor, slots_M: Tensor, values: Tensor) -> None:
        """As the protocol says."""
        pages.index_copy_(0, slots_M, values)

    def merge_by_lse(self, out_TNHv: Tensor, lse_TNH: Tensor) -> Tensor:
        """As the protocol says."""
        return reference.merge_by_lse(out_TNHv, lse_TNH)

    def side_by_side(self, first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
        """As the protocol says: one after the other."""
        return first(), second()

    def moe_experts(
        self, out_ND: Tensor, x_ND: Tensor, ids_NK: Tensor, weights_NK: Tensor, experts: Experts
    ) -> None:
        """One expert after the other, on its own rows. Waits for the device: counts are read back."""
        # Pairs (row, choice) sorted by expert: one contiguous run of rows for each local expert that has any.
        order = ids_NK.flatten().argsort(stable=True)
        rows = order // ids_NK.shape[1]
        weights = weights_NK.flatten()[order]
        last = experts.first + experts.gate_up_EXD.shape[0]
        counts = torch.bincount(ids_NK.flatten(), minlength=last).tolist()
        end = sum(counts[: experts.first])
        for local, count in enumerate(counts[experts.first : last]):
            start, end = end, end + count
            if count == 0:
                continue
            mine = rows[start:end]
            y_MD = gated_ffn(x_ND[mine], experts.gate_up_EXD[local], experts.down_EDI[local])
            out_ND.index_add_(0, mine, (y_MD * weights[start:end, None]).to(out_ND.dtype))
