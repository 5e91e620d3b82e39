"""A pool of real rank processes for tests: started once, given many programs, ended with the test module.

    with RankPool(2, tmp_path, backend=Backend.GLOO) as pool:
        results = pool.run(program, argument)      # program(comms, argument) on both ranks

Programs are top-level functions. A program that fails on one rank may leave the others in a collective,
so the pool then ends its processes; the next `run` starts fresh ones. Nothing waits beyond its deadline.
"""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from splash_core.dist.comm import RankComms
from splash_core.dist.launch import Backend, LaunchConfig, rank_comms
from splash_core.ids import RankId
from splash_core.obs.lifeline import die_with_parent

_START_TIMEOUT_S = {"cpu": 90.0, "cuda": 400.0}
"""A fresh GPU machine reads gigabytes of libraries first."""
_GRACE_S = 2.0
"""For the other ranks to say what befell them, once one has failed."""


class RankFailed(Exception):
    """A rank's program failed in a way that cannot be raised here again, or its process ended."""


class RankPool:
    """`num_ranks` processes joined by `backend`, one torch thread each; on `cuda`, rank i has GPU i."""

    def __init__(
        self,
        num_ranks: int,
        folder: Path,
        *,
        backend: Backend = Backend.GLOO,
        device: str = "cpu",
        collective_timeout_s: float = 60.0,
    ) -> None:
        self._num_ranks = num_ranks
        self._folder = folder
        self._backend = backend
        self._device = device
        self._start_timeout_s = _START_TIMEOUT_S[device]
        self._collective_timeout_s = collective_timeout_s
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._lives = 0

    @property
    def pids(self) -> list[int]:
        """The rank processes, in rank order (started if need be)."""
        self._start()
        return [process.pid or -1 for process in self._processes]

    def run(self, fn: Callable[..., Any], *args: Any, timeout_s: float = 120.0) -> list[Any]:
        """`fn(comms, *args)` on every rank; the results in rank order.

        Raises:
            Exception: what the first failing rank raised, with a note of its rank and traceback.
            RankFailed: a rank's process ended, or the time is up.
        """
        self._start()
        for pipe in self._pipes:
            pipe.send((fn, args))
        answers, failure = self._collect(time.monotonic() + timeout_s)
        if failure is not None:
            self.close()
            raise failure
        return [answers[rank] for rank in range(self._num_ranks)]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._processes, self._pipes = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        if self._processes:
            return
        self._lives += 1
        rendezvous = f"file://{self._folder}/ranks-{os.getpid()}-{id(self)}-{self._lives}"
        # CUDA wants fresh processes; others start faster from a server that has torch loaded.
        get_context = multiprocessing.get_context
        context = get_context("spawn") if self._device == "cuda" else get_context("forkserver")
        context.set_forkserver_preload(["torch", "splash_core.dist.launch"])
        for rank in range(self._num_ranks):
            config = LaunchConfig(
                rank=RankId(rank),
                num_ranks=self._num_ranks,
                rendezvous=rendezvous,
                backend=self._backend,
                device=torch.device("cpu") if self._device == "cpu" else torch.device(self._device, rank),
                join_timeout_s=self._start_timeout_s,
                collective_timeout_s=self._collective_timeout_s,
            )
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(config, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        _, failure = self._collect(time.monotonic() + self._start_timeout_s)
        if failure is not None:
            self.close()
            raise failure

    def _collect(self, deadline: float) -> tuple[dict[int, Any], Exception | None]:
        """One answer of every rank, or the first failure."""
        answers: dict[int, Any] = {}
        failure: Exception | None = None
        waiting = dict(enumerate(self._pipes))
        while waiting and time.monotonic() < deadline:
            ready = wait(list(waiting.values()), max(0.0, deadline - time.monotonic()))
            for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                pipe = waiting.pop(rank)
                answer = _receive(pipe, rank)
                if not isinstance(answer, _Failure):
                    answers[rank] = answer
                elif failure is None:
                    failure = answer.as_exception(rank, self._num_ranks)
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        if waiting and failure is None:
            failure = RankFailed(f"ranks {sorted(waiting)} of {self._num_ranks} did not answer in time")
        return answers, failure


class _Failure:
    """What a rank sends instead of a result."""

    def __init__(self, error: BaseException | None, trace: str) -> None:
        self.error = error
        self.trace = trace

    def as_exception(self, rank: int, num_ranks: int) -> Exception:
        error = self.error if isinstance(self.error, Exception) else RankFailed("see the note")
        error.add_note(f"on rank {rank} of {num_ranks}:\n{self.trace}")
        return error


def _receive(pipe: Connection, rank: int) -> Any:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return _Failure(None, f"the process of rank {rank} ended")


def _serve(config: LaunchConfig, pipe: Connection) -> None:
    """The main of a rank process: join, say so, run programs until the pipe closes."""
    die_with_parent(os.getppid())
    torch.set_num_threads(1)
    try:
        with rank_comms(config) as comms:
            pipe.send(None)
            _run_programs(comms, pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        # The group did not come together: the start's answer says why.
        with suppress(OSError):
            pipe.send(_Failure(error, traceback.format_exc()))
        raise


def _run_programs(comms: RankComms, pipe: Connection) -> None:
    while True:
        fn, args = pipe.recv()
        try:
            answer = fn(comms, *args)
        except Exception as error:
            answer = _Failure(error, traceback.format_exc())
        try:
            pipe.send(answer)
        except (TypeError, AttributeError, ValueError) as error:
            pipe.send(_Failure(None, f"{answer!r} cannot be sent: {error}"))
