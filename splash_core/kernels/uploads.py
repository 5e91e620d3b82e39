"""How a step's host-made indices reach a GPU without waiting for it.

`PinnedUploads` is for steps that are launched kernel by kernel. `StepBuffer` is for steps that replay a CUDA
graph: the same step made again puts each of its tensors at the address where the graph reads it.
"""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splash_core.errors import InvariantBroken

_ALIGNMENT = 16


class Uploads(Protocol):
    """Where `Kernels.upload` puts values."""

    def put(self, values: NDArray[Any]) -> Tensor:
        """The values on the device, with the same element type and shape."""
        ...


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values on a device; the host does not wait for the copy.

    The caching host allocator keeps the source until it was read.
    """
    source = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cpu" or source.numel() == 0:
        return source.to(device)
    return source.pin_memory().to(device, non_blocking=True)


class PinnedUploads:
    """One asynchronous copy per tensor."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def put(self, values: NDArray[Any]) -> Tensor:
        """As the protocol says."""
        return upload(values, self._device)


class StepBuffer:
    """Fixed device memory for the indices of a step that replays a CUDA graph.

    `begin`, then the step's `put`s, then `commit`: tensors hold their values once the copy that `commit`
    enqueues on the current stream has run. The first round fixes the order, shapes and types of the tensors.

    Args:
        device: a CUDA device; a CPU works too (for tests).
        num_bytes: capacity.
    """

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        on_gpu = device.type == "cuda"
        self._device_B = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._hosts_B = [torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
        """They take turns: a step is prepared while the step before has not copied its own yet."""
        self._copied = [torch.cuda.Event() for _ in self._hosts_B] if on_gpu else []
        self._round = 0
        self._layout: list[tuple[np.dtype[Any], tuple[int, ...], Tensor]] = []
        self._fixed = False
        self._next = 0
        self._end = 0

    def begin(self) -> None:
        """Start a round. Waits until the copy of the round before the last has left the host's memory."""
        self._round = (self._round + 1) % len(self._hosts_B)
        if self._copied:
            self._copied[self._round].synchronize()
        self._next = 0

    def put(self, values: NDArray[Any]) -> Tensor:
        """The values' place on the device.

        Raises:
            InvariantBroken: the tensor is not the one of the first round, or there is no room.
        """
        if not self._fixed:
            self._layout.append((values.dtype, values.shape, self._reserve(values)))
        if self._next == len(self._layout):
            raise InvariantBroken("a replayed step has more tensors than the one that was captured")
        dtype, shape, place = self._layout[self._next]
        if (values.dtype, values.shape) != (dtype, shape):
            raise InvariantBroken(
                f"tensor {self._next} of a replayed step is {values.dtype} {values.shape}, "
                f"captured was {dtype} {shape}"
            )
        self._next += 1
        start = place.storage_offset() * dtype.itemsize
        target = self._hosts_B[self._round].numpy()[start : start + values.nbytes]
        target[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return place

    def commit(self) -> None:
        """Enqueue the round's one copy.

        Raises:
            InvariantBroken: tensors of the first round are missing.
        """
        if self._next != len(self._layout):
            raise InvariantBroken(f"a replayed step has {self._next} tensors, captured {len(self._layout)}")
        self._fixed = True
        source_B = self._hosts_B[self._round]
        self._device_B[: self._end].copy_(source_B[: self._end], non_blocking=True)
        if self._copied:
            self._copied[self._round].record()

    def _reserve(self, values: NDArray[Any]) -> Tensor:
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        end = start + values.nbytes
        if end > self._device_B.numel():
            raise InvariantBroken(f"a step's indices need more than {self._device_B.numel()} bytes")
        self._end = end
        dtype = torch.from_numpy(np.empty(0, dtype=values.dtype)).dtype
        return self._device_B[start:end].view(dtype).view(values.shape)
