"""What tests on GPUs share: how many there are, and processes that use one each."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from splash_core.dist.launch import LaunchConfig
from splash_core.dist.meeting import Backend
from splash_core.ids import RankId
from splash_core.obs.lifeline import die_with_parent

NUM_GPUS = torch.cuda.device_count()
"""T of the tests. They fail without one: they were asked for with `-m gpu`."""
START_WITHIN_S = 400.0
END_WITHIN_S = 60.0


def gpu_launch(rank: int, num_ranks: int, folder: Path, **changes: Any) -> LaunchConfig:
    """How rank `rank`, on the GPU of its number, finds its group."""
    return LaunchConfig(
        rank=RankId(rank),
        num_ranks=num_ranks,
        rendezvous=f"file://{folder}/rendezvous",
        backend=Backend.NCCL,
        device=torch.device("cuda", rank),
        join_timeout_s=START_WITHIN_S,
        **changes,
    )


def run_to_the_end(program: Callable[..., Any], num_ranks: int, *args: Any) -> list[Any]:
    """`program(rank, num_ranks, *args)` in a process of each rank; its answers, once all have *exited* well.

    A process that answers but does not exit within a minute is a failure: that is what a hang at the end is.
    """
    context = multiprocessing.get_context("spawn")
    answers: Queue[tuple[int, Any, str]] = context.Queue()
    processes = [
        context.Process(
            target=_main, args=(program, rank, num_ranks, args, answers, os.getpid()), daemon=True
        )
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    try:
        got: dict[int, Any] = {}
        deadline = time.monotonic() + START_WITHIN_S
        while len(got) < num_ranks:
            # Looked at before the queue: what a process has answered before it ended is in there.
            codes = {rank: process.exitcode for rank, process in enumerate(processes) if rank not in got}
            try:
                rank, answer, failure = answers.get(timeout=1.0)
            except Empty:
                ended = {rank: code for rank, code in codes.items() if code is not None}
                assert not ended, f"ranks ended without an answer, with codes {ended}; stderr says why"
                assert time.monotonic() < deadline, f"no answer from ranks {sorted(codes)}"
                continue
            assert not failure, f"rank {rank} of {num_ranks} failed:\n{failure}"
            got[rank] = answer
        deadline = time.monotonic() + END_WITHIN_S
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in processes]
        assert codes == [0] * num_ranks, f"exit codes of the ranks; None: hangs at its end: {codes}"
        return [got[rank] for rank in range(num_ranks)]
    finally:
        for process in processes:
            process.kill()


def _main(
    program: Callable[..., Any],
    rank: int,
    num_ranks: int,
    args: tuple[Any, ...],
    answers: "Queue[tuple[int, Any, str]]",
    parent: int,
) -> None:
    die_with_parent(parent)
    try:
        answers.put((rank, program(rank, num_ranks, *args), ""))
    except Exception:
        answers.put((rank, None, traceback.format_exc()))
        raise
