"""Plain torch for recorded decode steps: shapes that do not change from step to step.

Slow where histories differ much in length, since every row is padded to the longest that is allowed, but
right on any device: what the faster backends' recorded steps are tested against.

Legend: see `kernels/base.py`.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from splash_core.attention.batch import Batch
from splash_core.attention.torch_backend import TorchAttention, TorchPrepared
from splash_core.attention.work import decode_work
from splash_core.kernels.base import IntArray, Kernels, WritePlaces
from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.kernels.uploads import Uploads
from splash_core.layout.ownership import NO_SLOT


class StaticTorchAttention(TorchAttention):
    """See the module.

    Args:
        kernels: whose `upload` places indices.
        max_pages: pages of the longest history.
    """

    def __init__(self, kernels: Kernels, *, max_pages: int) -> None:
        super().__init__(kernels)
        self._max_pages = max_pages

    @override
    def paged(self, batch: Batch, rows_N: IntArray) -> TorchPrepared:
        """Of a padded batch: all rows as one group."""
        return TorchPrepared(decode_work(batch, rows_N, self._kernels, max_pages=self._max_pages))


class StaticTorchKernels(TorchKernels):
    """Keeps the places of rows that are not written, and leaves those out when it writes.

    Args:
        device: where tensors live.
        uploads: where indices go: the same places in every step.
    """

    def __init__(self, device: torch.device, uploads: Uploads) -> None:
        super().__init__(device)
        self._uploads = uploads

    @override
    def upload(self, values: NDArray[Any]) -> Tensor:
        """As the protocol says."""
        return self._uploads.put(values)

    @override
    def write_places(self, slots_N: IntArray, offsets_N: IntArray) -> WritePlaces:
        """As the protocol says."""
        return WritePlaces(slots_N=self.upload(slots_N), offsets_N=self.upload(offsets_N), rows_N=None)

    @override
    def append_rows(self, pages_SPC: Tensor, rows_NC: Tensor, places: WritePlaces) -> None:
        """As the protocol says; waits for the device to find out which rows are written."""
        kept_N = places.slots_N != NO_SLOT
        where = (places.slots_N[kept_N], places.offsets_N[kept_N])
        pages_SPC[where] = rows_NC[kept_N]
