"""Collectives behind one small interface; the group is always passed, never looked up.

Every call names its `tag` (what is moved, e.g. `tp.gather_rows`): wrapped in a communicator that adds up what
each rank *receives from other ranks* per tag, the code is held against the formulas of docs/model.md §4.

Row collectives are "v" collectives: `counts[j]` is rank j's number of rows (dim 0), known to all ranks
and free to be zero. All tensors are contiguous; all ranks call in the same order, one thread at a time.
With one rank a result may be the argument itself. What one exchange sends must not overlap what it receives.

On GPUs every call but `barrier` is enqueued on the current CUDA stream and returns at once; "rank order" of
sums is then replaced by an order that is fixed, see `reduce_scatter_rows`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from splash_core.dist.peer_memory import Sharing
from splash_core.ids import RankId


@dataclass(frozen=True, slots=True)
class Transfer:
    """One side of a point-to-point transfer: `tensor` is contiguous; a receive lands in it."""

    peer: RankId
    tensor: Tensor


class Comm(Protocol):
    """One communicator over the T ranks of a group."""

    @property
    def rank(self) -> RankId:
        """This rank."""
        ...

    @property
    def size(self) -> int:
        """T."""
        ...

    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        """`[counts[rank], …]` on each rank → `[sum(counts), …]` in rank order on all."""
        ...

    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        """Rows for rank 0 first, then rank 1 … → `[sum(recv_counts), …]` in source-rank order."""
        ...

    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        """Sum over ranks of `[sum(counts), …]`, of which rank j gets its `counts[j]` rows.

        No backend's result depends on timing. On CPU the sum is taken in rank order, half types in fp32. NCCL
        sums equal counts in an order that is fixed for a size, element type and topology, but is neither rank
        order nor the same for all elements, and rounds half types after each addition: the same call gives
        the same bits, another number of rows may not.
        """
        ...

    def exchange(self, sends: Sequence[Transfer], recvs: Sequence[Transfer], *, tag: str) -> None:
        """One grouped send/receive. Transfers between two ranks match in order; sizes match pairwise."""
        ...

    def barrier(self) -> None:
        """Return once every rank has called it; `OneShotComm`'s only makes the stream wait."""
        ...

    def settle(self) -> None:
        """End a sequence of calls so that the same sequence may follow again, as in a replayed CUDA graph.

        Backends without state between calls need nothing.
        """
        return

    def close(self) -> None:
        """Release the communicator; later calls fail."""
        ...


@dataclass(frozen=True, slots=True)
class RankComms:
    """What a rank talks through: communicators over the same ranks, made at start (docs/model.md §5)."""

    compute: Comm
    transfer: Comm
    device: torch.device
    """Where tensors of these communicators live."""
    small: Comm | None = None
    """Faster for messages of known sizes up to some hundred KiB, where the machine has such a thing."""
    sharing: Sharing | None = None
    """Memory that all ranks can read, where the machine has such a thing."""

    @property
    def recorded(self) -> Comm:
        """What replayed decode steps talk through."""
        return self.small or self.compute
