"""The GPUs of one host agree on memory that all of them can read."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from splash_core.dist.nccl import NcclComm
from splash_core.dist.symmetric import SymmetricAllocation, SymmetricMemory

_log = logging.getLogger("splash.dist")


class HostSharing:
    """A `Sharing` over torch's symmetric memory.

    Args:
        compute: of the ranks, all on one host.
        device: this rank's GPU.
    """

    def __init__(self, compute: NcclComm, device: torch.device) -> None:
        self._compute = compute
        self._device = device

    def take(self, num_bytes: int) -> SymmetricMemory | None:
        """As in the protocol."""
        allocation: SymmetricAllocation | None = None
        memory: SymmetricMemory | None = None
        with _falls_back():
            allocation = SymmetricAllocation(num_bytes=num_bytes, device=self._device)
        # Connecting waits for every rank, so all must come or none.
        if not self._agreed(allocation is not None) or allocation is None:
            return None
        with _falls_back():
            memory = allocation.connect(self._compute.group)
        if not self._agreed(memory is not None) or memory is None:
            return None
        return memory

    def _agreed(self, works: bool) -> bool:
        mine = torch.tensor([works], dtype=torch.int64, device=self._device)
        counts = [1] * self._compute.size
        return bool(self._compute.all_gather_rows(mine, counts, tag="launch.sharing").all())


@contextmanager
def _falls_back() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        _log.warning("GPUs cannot read each other's memory, everything goes through NCCL: %s", error)
