"""Random weights for a model that is only measured or tried: a `Reader` that needs no files.

Invariant: a tensor depends on (seed, name, shape, element type, kind of device) alone, and a slice is cut
from the whole, so the shards of all ranks together are one model, whoever generates which.

A CPU and a CUDA generator draw different numbers from one seed: comparing devices needs a checkpoint.
"""

import hashlib
import math

import torch
from torch import Tensor

from splash_core.model.names import expected_tensors
from splash_core.spec.model import ModelSpec

_NORM_NOISE = 0.1
_BIAS_NOISE = 0.01
"""Small: a router's bias of the size of its scores would send all rows to a few experts."""


class RandomReader:
    """Generates each tensor where it is wanted, in the type in which it is kept.

    Args:
        spec: the model.
        seed: of all tensors.
        dtype: of the weights.
        device: where they are generated.
    """

    def __init__(self, spec: ModelSpec, *, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self._shapes = expected_tensors(spec, fused=False)
        self._seed = seed
        self._dtype = dtype
        self._device = device

    @property
    def fused_experts(self) -> bool:
        """False: each expert is a tensor of its own, so that a rank generates only those it keeps."""
        return False

    def read(self, name: str, *ranges: tuple[int, int]) -> Tensor:
        """The tensor, cut to the half-open `ranges` of its first dims.

        Matrices have entries of variance 1/fan-in, norms are close to 1, biases close to 0.
        """
        shape = self._shapes[name]
        generator = torch.Generator(self._device).manual_seed(_seed_of(self._seed, name))
        whole = torch.randn(shape, generator=generator, dtype=self._dtype, device=self._device)
        if len(shape) > 1:
            whole.mul_(1.0 / math.sqrt(shape[-1]))
        elif name.endswith("bias"):
            whole.mul_(_BIAS_NOISE)
        else:
            whole.mul_(_NORM_NOISE).add_(1.0)
        if not ranges:
            return whole
        # A copy: a view would keep the whole tensor alive for as long as the slice is kept.
        return whole[tuple(slice(start, end) for start, end in ranges)].clone()


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
