"""How a step's results reach the host without anybody waiting on the way."""

import torch
from torch import Tensor


def start_download(values: Tensor) -> Tensor:
    """The values on the host, there once the current stream has run so far; on a CPU at once.

    Whoever reads them waits for an event of the stream first. The caching host allocator keeps the memory
    until the copy has been made.
    """
    if values.device.type == "cpu":
        return values
    target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return target.copy_(values, non_blocking=True)
