"""Kernels for NVIDIA GPUs: Triton where no library has one, plain torch where a type is not for speed.

Triton is imported when an object is made, so that this module may be imported anywhere. Shapes are those of
the arguments, never of what they hold: all rows have a place, and a place without a slot is skipped.

Legend: see `kernels/base.py`.
"""

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from splash_core.kernels import reference
from splash_core.kernels.base import A, B, Experts, IntArray, WritePlaces
from splash_core.kernels.expert_pairs import (
    dense_experts,
    grouped_experts,
    masked_experts,
    wants_dense,
)
from splash_core.kernels.uploads import Uploads

_GROUPED_WIDTH = 8
"""`grouped_mm` wants widths that are multiples of this (bf16)."""


class CudaKernels:
    """See the module.

    Args:
        uploads: how indices reach the device.
    """

    def __init__(self, uploads: Uploads) -> None:
        from splash_core.kernels import triton_merge, triton_pages
        from splash_core.kernels.triton_pairs import TritonPairs

        self._uploads = uploads
        self._pages = triton_pages
        self._merge = triton_merge
        self._pairs = TritonPairs()

    def upload(self, values: NDArray[Any]) -> Tensor:
        """As the protocol says."""
        return self._uploads.put(values)

    def write_places(self, slots_N: IntArray, offsets_N: IntArray) -> WritePlaces:
        """As the protocol says; all rows are kept."""
        return WritePlaces(slots_N=self.upload(slots_N), offsets_N=self.upload(offsets_N), rows_N=None)

    def append_rows(self, pages_SPC: Tensor, rows_NC: Tensor, places: WritePlaces) -> None:
        """As the protocol says."""
        assert places.rows_N is None, "places of another library"
        self._pages.append_rows(pages_SPC, rows_NC, places.slots_N, places.offsets_N)

    def gather_pages(self, pages: Tensor, slots_M: Tensor, out: Tensor | None = None) -> Tensor:
        """As the protocol says."""
        return self._pages.gather_pages(pages, slots_M, out)

    def scatter_pages(self, pages: Tensor, slots_M: Tensor, values: Tensor) -> None:
        """As the protocol says."""
        self._pages.scatter_pages(pages, slots_M, values)

    def merge_by_lse(self, out_TNHv: Tensor, lse_TNH: Tensor) -> Tensor:
        """As the protocol says."""
        if lse_TNH.dtype is not torch.float32:
            return reference.merge_by_lse(out_TNHv, lse_TNH)
        return self._merge.merge_by_lse(out_TNHv, lse_TNH)

    def side_by_side(self, first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
        """As the protocol says: one after the other, since launching is what few rows cost."""
        return first(), second()

    def moe_experts(
        self, out_ND: Tensor, x_ND: Tensor, ids_NK: Tensor, weights_NK: Tensor, experts: Experts
    ) -> None:
        """As the protocol says; batched or grouped products in bf16, in wider types expert by expert."""
        num_rows, choices = ids_NK.shape
        # Rows of every operand must be whole 16-byte units.
        widths = x_ND.shape[1], experts.down_EDI.shape[2]
        if x_ND.dtype is not torch.bfloat16 or any(width % _GROUPED_WIDTH for width in widths):
            masked_experts(out_ND, x_ND, ids_NK, weights_NK, experts)
        elif wants_dense(num_rows=num_rows, choices=choices, num_in_layer=experts.num_in_layer):
            dense_experts(out_ND, x_ND, ids_NK, weights_NK, experts, self._pairs)
        else:
            grouped_experts(out_ND, x_ND, ids_NK, weights_NK, experts, self._pairs)


class RecordedCudaKernels(CudaKernels):
    """Of steps that are recorded: a replay launches nothing, so short kernels may run beside each other.

    Args:
        uploads: how indices reach the device.
        side: a stream that nothing else uses.
    """

    def __init__(self, uploads: Uploads, side: torch.cuda.Stream) -> None:
        super().__init__(uploads)
        self._side = side

    @override
    def side_by_side(self, first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
        """As the protocol says; the second on another stream. Both streams have met before it returns."""
        main = torch.cuda.current_stream(self._side.device)
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            other = second()
        mine = first()
        main.wait_stream(self._side)
        return mine, other
