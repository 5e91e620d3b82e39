"""Which kernel and attention library a device gets: the one place that looks at the device's kind."""

from dataclasses import dataclass

import torch

from splash_core.attention.backend import AttentionBackend
from splash_core.attention.torch_backend import TorchAttention
from splash_core.kernels.base import Kernels
from splash_core.kernels.torch_kernels import TorchKernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """What a rank computes with."""

    kernels: Kernels
    attention: AttentionBackend


def backends_for(device: torch.device, dtype: torch.dtype) -> Backends:
    """The libraries for a model computed in `dtype` on `device`.

    Others can be tried by `dataclasses.replace` on an engine's context.
    """
    del dtype  # plain torch computes in any
    kernels = TorchKernels(device)
    return Backends(kernels=kernels, attention=TorchAttention(kernels))
