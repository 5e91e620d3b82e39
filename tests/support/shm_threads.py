"""Shared-memory communicators between threads of the test process: the same code, cheap to start."""

import os
from collections.abc import Callable
from typing import TypeVar

from splash_core.dist.inprocess import run_ranks
from splash_core.dist.shm import ShmComm
from splash_core.dist.shm_segment import Segment, create_segment
from splash_core.ids import RankId

R = TypeVar("R")


def run_on_shm(
    num_ranks: int, fn: Callable[[ShmComm], R], *, timeout_s: float = 20.0, spins: int = 0
) -> list[R]:
    """`fn(comm)` once per rank, each in its own thread."""
    fd = create_segment(num_ranks)
    try:
        segments = [Segment(fd, num_ranks) for _ in range(num_ranks)]
    finally:
        os.close(fd)

    def rank_main(rank: int) -> R:
        pids = [os.getpid()] * num_ranks
        comm = ShmComm(segments[rank], RankId(rank), pids=pids, timeout_s=timeout_s, spins=spins)
        try:
            return fn(comm)
        finally:
            comm.close()

    return run_ranks(num_ranks, lambda comms: rank_main(comms.compute.rank), timeout_s=3 * timeout_s)
