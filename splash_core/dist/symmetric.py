"""Memory of every GPU of a host that all ranks can read, from torch's symmetric memory.

Ordinary loads over NVLink only: no multicast object is made, and none is needed.
"""

# pyright: reportPrivateImportUsage=false
# torch keeps symmetric memory in a private module until its interface is final.

import torch
import torch.distributed as dist
from torch import Tensor


class SymmetricMemory:
    """One allocation per rank of a group, made by all ranks at once.

    Args:
        group: the ranks; all on one host.
        num_bytes: per rank.
        device: this rank's GPU.
    """

    def __init__(self, group: dist.ProcessGroup, *, num_bytes: int, device: torch.device) -> None:
        # Only where GPUs are: importing it takes a while.
        from torch.distributed import _symmetric_memory as symmetric

        self.num_bytes = num_bytes
        self._own_B = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)
        self._handle = symmetric.rendezvous(self._own_B, group)
        self._views = [
            self._handle.get_buffer(rank, (num_bytes,), torch.uint8) for rank in range(dist.get_world_size(group))
        ]

    def of(self, rank: int) -> Tensor:
        """`[num_bytes]` uint8 of that rank."""
        return self._views[rank]

    def barrier(self) -> None:
        """On the current stream."""
        self._handle.barrier(channel=0)
