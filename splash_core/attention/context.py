"""What a rank computes with, passed to every layer: the arena, the weights, one communicator."""

from dataclasses import dataclass

import torch

from splash_core.attention.backend import AttentionBackend
from splash_core.dist.comm import Comm
from splash_core.ids import RankId
from splash_core.kernels.base import Kernels
from splash_core.kv.arena import Arena
from splash_core.model.rope import RotaryTable
from splash_core.model.shards import RankWeights
from splash_core.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """Fixed for the life of a rank; the layout of a step travels in its batch and plan."""

    comm: Comm
    """The compute communicator."""
    kernels: Kernels
    attention: AttentionBackend
    arena: Arena
    spec: ModelSpec
    weights: RankWeights
    rotary: RotaryTable
    scale: float
    """Softmax scale."""
    device: torch.device
    dtype: torch.dtype

    @property
    def rank(self) -> RankId:
        """This rank."""
        return self.comm.rank

    @property
    def num_ranks(self) -> int:
        """T."""
        return self.comm.size
