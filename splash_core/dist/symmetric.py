"""Memory of every GPU of a host that all ranks can read, from torch's symmetric memory.

Ordinary loads over NVLink only: no multicast object is made, and none is needed.
"""

# pyright: reportPrivateImportUsage=false
# torch keeps symmetric memory in a private module until its interface is final.

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class SymmetricAllocation:
    """This rank's part, not yet known to the others.

    Args:
        num_bytes: equal on all ranks.
        device: this rank's GPU.

    Raises:
        RuntimeError: the device has no such memory, or none left.
    """

    def __init__(self, *, num_bytes: int, device: torch.device) -> None:
        # Only where GPUs are: importing it takes a while.
        from torch.distributed import _symmetric_memory as symmetric

        self._symmetric = symmetric
        self._own_B = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)

    def connect(self, group: dist.ProcessGroup) -> "SymmetricMemory":
        """Exchange addresses; every rank of the group calls it, or none: it waits for all.

        Raises:
            RuntimeError: the GPUs cannot reach each other's memory.
        """
        return SymmetricMemory(self._own_B, self._symmetric.rendezvous(self._own_B, group), group)


class SymmetricMemory:
    """Equally large memory on every rank of a group, all on one host: a `PeerMemory`.

    Args:
        own_B: this rank's, kept alive here.
        handle: torch's, of the connected allocation.
        group: the ranks.
    """

    def __init__(self, own_B: Tensor, handle: Any, group: dist.ProcessGroup) -> None:
        self.num_bytes = own_B.numel()
        self._own_B = own_B
        self._handle = handle
        self._views = [
            self._handle.get_buffer(rank, (self.num_bytes,), torch.uint8) for rank in range(dist.get_world_size(group))
        ]

    def of(self, rank: int) -> Tensor:
        """`[num_bytes]` uint8 of that rank."""
        return self._views[rank]

    def barrier(self, channel: int = 0) -> None:
        """On the current stream."""
        self._handle.barrier(channel=channel)
