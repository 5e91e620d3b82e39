"""One program on all ranks of a group: spawned processes, or threads of this one.

There is no leader: every rank runs the same program on the same inputs, so all ranks make the same plans
without a message. What only a clock knows is told to all by `RankHost.agree`. Invariant: when `run_spmd`
returns or raises, no rank process is left.
"""

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from services.bench.alone import alone_comms
from services.bench.lengths import check_lengths, with_usual_lengths
from services.bench.room import check_weights
from services.bench.settings import (
    ALONE,
    INPROCESS,
    BenchSettings,
    CapacitySettings,
    SweepSettings,
    SwitchSettings,
)
from services.bench.shapes import measured_spec
from splash_core.dist.comm import RankComms
from splash_core.dist.inprocess import run_ranks
from splash_core.dist.launch import Backend, LaunchConfig, rank_comms
from splash_core.environment import keep_multicast_off
from splash_core.errors import ConfigError, GroupFailed, Infeasible, SplashError
from splash_core.ids import RankId
from splash_core.obs.lifeline import die_with_parent

JOIN_TIMEOUT_S = 300.0
"""For all ranks to come: loading libraries on a fresh machine takes its time."""
_LINKS_APART = (CapacitySettings, SweepSettings, SwitchSettings)
"""What measures more than links: the work of one rank and its host."""
_BLAME_S = 3.0
_EXIT_GRACE_S = 15.0
"""A rank that has answered may hang while it takes its communicators down; its answer counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHost:
    """What a program knows of the rank that it runs on."""

    comms: RankComms
    started: float
    """`time.monotonic()` at the start of the whole run, for budgets and progress."""

    @property
    def rank(self) -> RankId:
        """This rank."""
        return self.comms.compute.rank

    @property
    def num_ranks(self) -> int:
        """T."""
        return self.comms.compute.size

    @property
    def leads(self) -> bool:
        """True on the one rank that reports and writes."""
        return self.rank == 0

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Numbers of every rank, in rank order; all ranks pass equally many."""
        mine = torch.tensor([list(values)], dtype=torch.float64, device=self.comms.device)
        rows = self.comms.compute.all_gather_rows(mine, [1] * self.num_ranks, tag="bench.numbers")
        return rows.tolist()

    def agree(self, value: float) -> float:
        """Rank 0's value, on all ranks: for decisions that depend on a clock."""
        return self.gather([value])[0][0]


Program = Callable[[RankHost, Any], Any]
"""A top-level function: it is found by name in the rank's process."""


def resolved(settings: BenchSettings) -> BenchSettings:
    """Settings whose `auto` values are decided, by what this machine has.

    Raises:
        ConfigError: they contradict each other, or the machine has too few GPUs.
        Infeasible: the ranks do not fit into the machine's memory, or requests into the model's positions.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = settings.device if settings.device != "auto" else ("cuda" if gpus else "cpu")
    if settings.ranks < 1:
        raise ConfigError(f"ranks must be at least 1, got {settings.ranks}")
    needed = 1 if settings.backend == ALONE else settings.ranks
    if device == "cuda" and needed > gpus:
        raise ConfigError(
            f"--ranks {settings.ranks} need {needed} GPUs, and torch sees {gpus} here; set fewer --ranks, "
            "check nvidia-smi and that torch is a CUDA build, or use --device cpu"
        )
    if settings.backend == ALONE and not isinstance(settings, _LINKS_APART):
        raise ConfigError(
            "--backend alone leaves out the links that this benchmark measures; it is for capacity, sweep "
            "and switch"
        )
    if device == "cuda" and settings.backend == INPROCESS:
        raise ConfigError("inprocess ranks share one CPU process; on GPUs leave --backend out")
    known = (ALONE, INPROCESS, *Backend)
    if settings.backend not in known:
        raise ConfigError(f"backend {settings.backend!r} is not one of {', '.join(known)}")
    model = settings.model if settings.model != "auto" else ("v3" if device == "cuda" else "tiny")
    dtype = settings.dtype if settings.dtype != "auto" else ("bf16" if device == "cuda" else "fp32")
    graphs = settings.graphs if settings.graphs != "auto" else ("on" if device == "cuda" else "off")
    page_size = settings.page_size or (4 if model == "tiny" else 64)
    decided = replace(settings, device=device, model=model, dtype=dtype, graphs=graphs, page_size=page_size)
    check_weights(decided)
    spec = measured_spec(model, layers=settings.layers, experts=settings.experts)
    decided = with_usual_lengths(decided, spec)
    check_lengths(decided, spec)
    return decided


def run_spmd(program: Program, settings: BenchSettings) -> Any:
    """Run `program(host, settings)` on every rank; returns what rank 0 returned.

    Args:
        program: a top-level function; all ranks must make the same collective calls.
        settings: with everything decided (`resolved`).

    Raises:
        ConfigError: a rank refuses the settings; so does `Infeasible`.
        GroupFailed: a rank failed; the message holds its traceback.
    """
    started = time.monotonic()
    if settings.backend == ALONE:
        keep_multicast_off()
        comms = alone_comms(settings.ranks, _device(settings, 0))
        return program(RankHost(comms=comms, started=started), settings)
    if settings.backend == INPROCESS:
        return run_ranks(
            settings.ranks,
            lambda comms: program(RankHost(comms=comms, started=started), settings),
            timeout_s=max(settings.step_timeout_s, settings.budget_s, 3600.0),
        )[0]
    with tempfile.TemporaryDirectory(prefix="splash-bench-") as folder:
        return _Processes(program, settings, Path(folder)).run()


class _Processes:
    """The rank processes of one run."""

    def __init__(self, program: Program, settings: BenchSettings, folder: Path) -> None:
        keep_multicast_off()
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        started = time.monotonic()
        for rank in range(settings.ranks):
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main,
                args=(program, settings, rank, f"file://{folder}/rendezvous", os.getpid(), started, there),
                daemon=True,
                name=f"splash-bench-rank-{rank}",
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self) -> Any:
        """The answer of rank 0, once all ranks have answered."""
        grace_s = 0.0
        try:
            answers = self._answers()
            grace_s = _EXIT_GRACE_S
        finally:
            self._end(grace_s)
        return answers[0]

    def _answers(self) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        failures: dict[int, str | SplashError] = {}
        while len(answers) + len(failures) < len(self._pipes):
            silent = [
                rank for rank in range(len(self._pipes)) if rank not in answers and rank not in failures
            ]
            # The first to fail is not always the cause: the others get a moment to say theirs.
            timeout_s = _BLAME_S if failures else None
            ready = wait([self._pipes[rank] for rank in silent], timeout_s)
            if not ready:
                break
            for rank in (rank for rank in silent if self._pipes[rank] in ready):
                failed, answer = self._receive(rank)
                (failures if failed else answers)[rank] = answer
        if failures:
            rank = min(failures, key=lambda rank: (_is_secondary(failures[rank]), rank))
            failure = failures[rank]
            if isinstance(failure, SplashError):
                raise failure
            raise GroupFailed(f"rank {rank} failed:\n{failure}")
        return answers

    def _receive(self, rank: int) -> tuple[bool, Any]:
        try:
            return self._pipes[rank].recv()
        except EOFError:
            self._processes[rank].join(_EXIT_GRACE_S)
            return True, f"it ended with exit code {self._processes[rank].exitcode} and said nothing"

    def _end(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()


def _is_secondary(failure: str | SplashError) -> bool:
    """True for a rank that only says that another one is gone."""
    return isinstance(failure, str) and GroupFailed.__name__ in failure.strip().rpartition("\n")[2]


def _rank_main(
    program: Program,
    settings: BenchSettings,
    rank: int,
    rendezvous: str,
    parent: int,
    started: float,
    pipe: Connection,
) -> None:
    die_with_parent(parent)
    try:
        with rank_comms(_launch_config(settings, rank, rendezvous)) as comms:
            answer = program(RankHost(comms=comms, started=started), settings)
            # Answered before the communicators are taken down, which may hang.
            pipe.send((False, answer if rank == 0 else None))
    except (ConfigError, Infeasible) as error:
        # The operator's, who needs no traceback.
        with suppress(OSError):
            pipe.send((True, error))
        raise SystemExit(1) from None
    except BaseException:
        # The parent may have gone, or have the answer already.
        with suppress(OSError):
            pipe.send((True, traceback.format_exc()))
        raise SystemExit(1) from None


def _launch_config(settings: BenchSettings, rank: int, rendezvous: str) -> LaunchConfig:
    return LaunchConfig(
        rank=RankId(rank),
        num_ranks=settings.ranks,
        rendezvous=rendezvous,
        backend=Backend(settings.backend),
        device=_device(settings, rank),
        join_timeout_s=JOIN_TIMEOUT_S,
        collective_timeout_s=settings.step_timeout_s,
        transfer_max_ctas=settings.transfer_max_ctas,
    )


def _device(settings: BenchSettings, rank: int) -> torch.device:
    """Where a rank computes, made the process's own."""
    if settings.device == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // settings.ranks))
    return torch.device("cpu")
