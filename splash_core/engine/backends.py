"""Which kernel and attention library a rank gets: the one place that looks at the device's kind."""

from dataclasses import dataclass

import torch

from splash_core.attention.backend import AttentionBackend
from splash_core.attention.flashinfer_library import FlashInferLibrary, serves
from splash_core.attention.library_backend import LibraryAttention
from splash_core.attention.torch_backend import TorchAttention
from splash_core.kernels.base import Kernels
from splash_core.kernels.cuda_kernels import CudaKernels
from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.kernels.uploads import PinnedUploads
from splash_core.spec.model import ModelSpec

_HOPPER = (9, 0)
"""Compute capability that FlashInfer's fa3 kernels are built for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """What a rank computes with."""

    kernels: Kernels
    attention: AttentionBackend


def backends_for(device: torch.device, dtype: torch.dtype, spec: ModelSpec) -> Backends:
    """The libraries for a model computed in `dtype` on `device`.

    Others can be tried by `dataclasses.replace` on an engine's context.
    """
    if device.type != "cuda":
        kernels = TorchKernels(device)
        return Backends(kernels=kernels, attention=TorchAttention(kernels))
    kernels = CudaKernels(PinnedUploads(device))
    if not serves(spec, dtype) or torch.cuda.get_device_capability(device) != _HOPPER:
        return Backends(kernels=kernels, attention=TorchAttention(kernels))
    library = FlashInferLibrary(spec, dtype, device)
    return Backends(kernels=kernels, attention=LibraryAttention(library, kernels))
