"""Weight shards that ranks pull out of each other's memory, in pieces that fit it."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.engine.movers import PullingMover
from splash_core.ids import RankId
from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.layout.layout import Matrix
from tests.support.thread_memory import ThreadMemory

RANKS, LAYER = 3, 1
SIZES = {Matrix.Q_B: 37, Matrix.KV_B: 8, Matrix.O: 64}


@dataclass
class Shards:
    """What the mover needs of an arena; a shard's values tell its matrix and its owner."""

    rank: RankId
    pages_SLPC: Tensor = field(default_factory=lambda: torch.zeros(1, 1, 1, 1))
    shards: dict[tuple[Matrix, int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for matrix in Matrix:
            for owner in range(RANKS):
                own = owner == self.rank
                self.shards[matrix, owner] = shard_of(matrix, owner) if own else torch.zeros(SIZES[matrix])

    def shard(self, layer: int, matrix: Matrix, owner: int) -> Tensor:
        assert layer == LAYER
        return self.shards[matrix, owner]


def shard_of(matrix: Matrix, owner: int) -> Tensor:
    return torch.arange(SIZES[matrix]) + 1000.0 * (1 + list(Matrix).index(matrix)) + 100_000.0 * owner


@pytest.mark.parametrize("num_bytes", [4 * 16, 4 * 44, 4 * 4096])
@pytest.mark.parametrize("track", [0, 1])
def test_shards_arrive_in_pieces_of_any_size(num_bytes: int, track: int) -> None:
    memory = ThreadMemory(RANKS, num_bytes)

    def rank_main(comms: RankComms) -> int:
        arena = Shards(comms.transfer.rank)
        mover = PullingMover(arena, comms.transfer, TorchKernels(torch.device("cpu")), memory)  # type: ignore[arg-type]
        for _ in range(2):
            mover.gather_weights(LAYER, list(Matrix), track=track)
        for (matrix, owner), shard_X in arena.shards.items():
            assert torch.equal(shard_X, shard_of(matrix, owner)), (matrix, owner)
        return mover.bytes_received

    received = run_ranks(RANKS, rank_main)
    assert list(received) == [2 * (RANKS - 1) * 4 * sum(SIZES.values())] * RANKS
