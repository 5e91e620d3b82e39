"""Both ways of moving a chunk: every page arrives, and kernels get indices that begin where they want them.

A kernel is compiled again for indices that do not begin at a multiple of 16 bytes, while peers wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.engine.movers import ExchangingMover, PullingMover, StateMover
from splash_core.ids import PageId, RankId, SlotId
from splash_core.kernels.torch_kernels import TorchKernels
from splash_core.switch.manifest import Chunk, PageMove
from tests.support.thread_memory import ThreadMemory
from tests.unit.test_staging import T, chunks

SLOTS, WIDTH = 64, 3
CPU = torch.device("cpu")


class WatchedKernels(TorchKernels):
    """Note by how many bytes indices begin where a GPU's kernels would be compiled again for them."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.astray: list[int] = []

    def gather_pages(self, pages: Tensor, slots_M: Tensor, *, out: Tensor) -> None:
        self.astray.append(slots_M.data_ptr() % 16)
        super().gather_pages(pages, slots_M, out=out)

    def scatter_pages(self, pages: Tensor, slots_M: Tensor, values: Tensor) -> None:
        self.astray.append(slots_M.data_ptr() % 16)
        super().scatter_pages(pages, slots_M, values)


@dataclass(frozen=True)
class Pages:
    """What a mover needs of an arena for pages; a page's values tell its rank and its slot."""

    pages_SLPC: Tensor

    def pages(self, layer: int | None) -> Tensor:
        assert layer == 0
        return self.pages_SLPC


def pages_of(rank: int) -> Tensor:
    return (1000.0 * rank + torch.arange(SLOTS)).unsqueeze(1).repeat(1, WIDTH)


def moved(chunk: Chunk, *, pulls: bool) -> Sequence[tuple[Tensor, list[int]]]:
    """Every rank's pages after the chunk has been moved twice, and how far its indices were astray."""
    memory = ThreadMemory(T, 1 << 14)

    def rank_main(comms: RankComms) -> tuple[Tensor, list[int]]:
        arena, kernels = Pages(pages_of(comms.transfer.rank)), WatchedKernels()
        mover: StateMover = (
            PullingMover(arena, comms.transfer, kernels, memory)  # type: ignore[arg-type]
            if pulls
            else ExchangingMover(arena, comms.transfer, kernels)  # type: ignore[arg-type]
        )
        for track, work in enumerate(mover.prepare([chunk, chunk])):
            mover.write_pages(work, 0, mover.read_pages(work, 0, track=track), track=track)
        return arena.pages_SLPC, kernels.astray

    return run_ranks(T, rank_main)


def check(chunk: Chunk, *, pulls: bool) -> None:
    expected = [pages_of(rank) for rank in range(T)]
    for move in chunk:
        expected[move.dst][move.dst_slot] = 1000.0 * move.src + move.src_slot
    for rank, (pages_SX, astray) in enumerate(moved(chunk, pulls=pulls)):
        assert not any(astray), rank
        assert torch.equal(pages_SX, expected[rank]), rank


@pytest.mark.parametrize("pulls", [False, True])
@settings(max_examples=40, deadline=None)
@given(chunk=chunks())
def test_pages_arrive_by_indices_that_are_aligned(pulls: bool, chunk: Chunk) -> None:
    check(chunk, pulls=pulls)


@pytest.mark.parametrize("pulls", [False, True])
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_whatever_number_of_pages_stays_on_a_rank(pulls: bool, kept: int) -> None:
    local = [PageMove(PageId(at), RankId(1), SlotId(at), RankId(1), SlotId(20 + at)) for at in range(kept)]
    come = [PageMove(PageId(9), RankId(src), SlotId(9), RankId(1), SlotId(40 + src)) for src in (0, 2, 3)]
    check(Chunk.of([*local, *come]), pulls=pulls)
