"""A group's rank processes as one thing: all of them work, or the group has failed.

Invariant: every wait here ends, with a result or with `GroupFailed` that names the rank and the cause: a rank
that exits, reports an exception, or misses its deadline fails all waits and kills the other ranks.
"""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from splash_core.environment import child_environment
from splash_core.errors import GroupFailed
from splash_core.ids import RankId
from splash_core.obs.logging import last_lines
from splash_core.pb import common_pb2, rank_pb2
from splash_core.rpc.codec import plan_to_pb, result_from_pb
from splash_core.rpc.link import LeaderLink
from splash_core.rpc.rank_config import RankConfig
from splash_core.scheduling.step import StepPlan, StepResult

_log = logging.getLogger("splash.leader.ranks")
_SETTLE_S = 0.3
"""After a rank's own error report, wait this long for a sibling's death: that is the cause, this the echo."""


def exit_text(code: int) -> str:
    """An exit code in words: `was killed by SIGKILL`, `exited with code 1`."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


RankCommand = Callable[[RankId, Path], list[str]]


def rank_command(rank: RankId, config: Path) -> list[str]:
    """Starts a rank on this host; the parent is added."""
    module = "splash_core.engine.rank_process"
    return [sys.executable, "-m", module, "--config", str(config), "--rank", str(rank)]


class RankPool:
    """Spawns the ranks, talks to them, and ends them as a unit."""

    def __init__(
        self,
        config: RankConfig,
        link: LeaderLink,
        *,
        folder: Path,
        on_loading: Callable[[int, int], None],
        command: RankCommand = rank_command,
    ) -> None:
        """Nothing is started yet.

        Args:
            config: of all ranks.
            link: the leader's end of the wire.
            folder: for the ranks' configuration and output.
            command: what starts a rank, from its number and the file with its configuration.
            on_loading: told the bytes of weights that all ranks have read, and are going to read.
        """
        self._config = config
        self._link = link
        self._folder = folder
        self._on_loading = on_loading
        self._command = command
        self._loading: dict[RankId, rank_pb2.RankLoading] = {}
        self._processes: dict[RankId, asyncio.subprocess.Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: dict[RankId, rank_pb2.RankReady] = {}
        self._push_lanes: set[RankId] = set()
        self._all_ready = asyncio.Event()
        self._results: dict[RankId, StepResult] = {}
        self._step_done = asyncio.Event()
        self._pushes: dict[tuple[int, RankId], asyncio.Future[rank_pb2.PushResult]] = {}
        self._failure: asyncio.Future[GroupFailed] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self.links: dict[RankId, rank_pb2.LinkReport] = {}
        """The newest report of each rank that has sent one."""
        self.last_progress = time.monotonic()

    @property
    def failure(self) -> GroupFailed | None:
        """Why the group ended, if it has."""
        return self._failure.result() if self._failure.done() else None

    @property
    def pids(self) -> dict[RankId, int]:
        """Process ids of the ranks."""
        return {rank: process.pid for rank, process in self._processes.items()}

    async def wait_failed(self) -> GroupFailed:
        """Return once the group has failed."""
        return await asyncio.shield(self._failure)

    async def start(self, *, parent_pid: int, timeout_s: float) -> tuple[rank_pb2.RankReady, ...]:
        """Start the ranks and wait until all are ready.

        Raises:
            GroupFailed: a rank died, reported an error, or was not ready in time.
        """
        self._tasks.append(asyncio.create_task(self._read()))
        config_path = self._folder / "ranks.json"
        self._config.write(config_path)
        for rank in range(self._config.num_ranks):
            await self._spawn(RankId(rank), config_path, parent_pid)
        await self._wait(self._all_ready, timeout_s, lambda: f"not ready within {timeout_s:g} s")
        return tuple(self._ready[RankId(rank)] for rank in range(self._config.num_ranks))

    async def _spawn(self, rank: RankId, config_path: Path, parent_pid: int) -> None:
        command = [*self._command(rank, config_path), "--parent", str(parent_pid)]
        with (self._folder / f"rank-{rank}.err").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=child_environment(num_threads=self._config.threads),
            )
        self._processes[rank] = process
        self._tasks.append(asyncio.create_task(self._watch(rank, process)))

    async def step(
        self, plan: StepPlan, *, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> tuple[StepResult, ...]:
        """Run one step on all ranks; results in rank order.

        Args:
            plan: the step.
            timeout_s: a rank that takes longer fails the group.
            meanwhile: called once while the ranks work.
        """
        self._results.clear()
        self._step_done.clear()
        await self._send_all(rank_pb2.ToRank(step=plan_to_pb(plan)))
        meanwhile()
        await self._wait(
            self._step_done, timeout_s, lambda: f"did not finish step {plan.step} within {timeout_s:g} s"
        )
        self.last_progress = time.monotonic()
        return tuple(self._results[RankId(rank)] for rank in range(self._config.num_ranks))

    async def push(
        self, orders: Mapping[RankId, rank_pb2.PushPages], *, timeout_s: float
    ) -> list[rank_pb2.PushResult]:
        """Have ranks write pages into another group's memory; returns every rank's report.

        A rank that keeps its own deadline but reports nothing within `timeout_s` fails the group: without its
        word nobody knows whether it still writes.
        """
        loop = asyncio.get_running_loop()
        waits: dict[RankId, asyncio.Future[rank_pb2.PushResult]] = {}
        for rank, order in orders.items():
            future: asyncio.Future[rank_pb2.PushResult] = loop.create_future()
            self._pushes[order.push, rank] = future
            waits[rank] = future
            await self._send(rank, rank_pb2.ToRank(push=order))
        await asyncio.wait(waits.values(), timeout=timeout_s)
        silent = [rank for rank, future in waits.items() if not future.done()]
        if silent:
            ranks = ", ".join(map(str, silent))
            self.fail(f"rank {ranks} did not report the end of a push within {timeout_s:g} s")
        return [await future for future in waits.values()]

    async def tell_links(self, notice: common_pb2.LinkNotice) -> None:
        """Tell all ranks' push lanes what another group's switches need of their links."""
        await self._send_all(rank_pb2.ToRank(link=notice))

    async def stop(self, *, grace_s: float = 2.0) -> None:
        """End the ranks: asked first, then killed."""
        self._stopping = True
        if self.failure is None:
            for rank in range(self._config.num_ranks):
                try:
                    await self._link.send(RankId(rank), rank_pb2.ToRank(stop=True))
                except GroupFailed as error:
                    _log.info("stop was not delivered: %s", error)
            waits = [asyncio.create_task(process.wait()) for process in self._processes.values()]
            if waits:
                await asyncio.wait(waits, timeout=grace_s)
        self.kill()
        for process in self._processes.values():
            await process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill(self) -> None:
        """Kill all ranks."""
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()

    def fail(self, cause: str) -> None:
        """End the group: remember the first cause, kill all ranks, fail every wait."""
        if self._failure.done() or self._stopping:
            return
        error = GroupFailed(f"group {self._config.group} failed: {cause}")
        _log.error("%s", error)
        self._failure.set_result(error)
        self.kill()
        for future in self._pushes.values():
            if not future.done():
                future.set_exception(error)

    async def _send_all(self, message: rank_pb2.ToRank) -> None:
        for rank in range(self._config.num_ranks):
            await self._send(RankId(rank), message)

    async def _send(self, rank: RankId, message: rank_pb2.ToRank) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            await self._link.send(rank, message)
        except GroupFailed as error:
            self.fail(str(error))
            raise self._failure.result() from error

    async def _wait(self, event: asyncio.Event, timeout_s: float, late: Callable[[], str]) -> None:
        done = asyncio.create_task(event.wait())
        try:
            await asyncio.wait([done, self._failure], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done.cancel()
        if self.failure is None and not event.is_set():
            have = self._results.keys() if self._all_ready.is_set() else self._ready.keys() & self._push_lanes
            missing = [rank for rank in range(self._config.num_ranks) if RankId(rank) not in have]
            self.fail(f"rank {', '.join(map(str, missing))} {late()}")
        if self.failure is not None:
            raise self.failure

    async def _watch(self, rank: RankId, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if code > 0:
            # A rank that exits by itself has sent its reason, or has left it in its log.
            await asyncio.sleep(2 * _SETTLE_S)
        detail = ""
        if code >= 0:
            lines = last_lines(self._folder / f"rank-{rank}.err", 3)
            detail = f": {' | '.join(lines)}" if lines else ""
        self.fail(f"rank {rank} (pid {process.pid}) {exit_text(code)}{detail}")

    async def _read(self) -> None:
        while True:
            rank, message = await self._link.receive()
            kind = message.WhichOneof("message")
            if kind == "ready":
                self._ready[rank] = message.ready
                self._note_ready()
            elif kind == "pushes_open":
                self._push_lanes.add(rank)
                self._note_ready()
            elif kind in ("loading", "link"):
                self._note_report(rank, message)
            elif kind == "step":
                self._results[rank] = result_from_pb(message.step)
                if len(self._results) == self._config.num_ranks:
                    self._step_done.set()
            elif kind == "push":
                future = self._pushes.pop((message.push.push, rank), None)
                if future is not None and not future.done():
                    future.set_result(message.push)
            elif kind == "failure":
                self._tasks.append(asyncio.create_task(self._settle(rank, message.failure.error)))

    def _note_report(self, rank: RankId, message: rank_pb2.FromRank) -> None:
        """What a rank tells now and then, and nobody waits for."""
        if message.HasField("link"):
            self.links[rank] = message.link
            return
        self._loading[rank] = message.loading
        entries = self._loading.values()
        done, total = (entry.done_bytes for entry in entries), (entry.total_bytes for entry in entries)
        self._on_loading(sum(done), sum(total))

    def _note_ready(self) -> None:
        """A rank is ready once it has said so and its push lane is connected too."""
        if len(self._ready) == len(self._push_lanes) == self._config.num_ranks:
            self._all_ready.set()

    async def _settle(self, rank: RankId, error: str) -> None:
        await asyncio.sleep(_SETTLE_S)
        self.fail(f"rank {rank}: {error}")
