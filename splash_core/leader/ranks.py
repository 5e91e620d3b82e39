"""A group's rank processes as one thing: all of them work, or the group has failed.

Invariant: every wait here ends, with a result or with `GroupFailed` that names the rank and the cause: a rank
that exits, reports an exception, or misses its deadline fails all waits and kills the other ranks. Pushes and
fences have no deadline here: they end when their ranks have reported them or are dead.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from splash_core.environment import child_environment
from splash_core.errors import GroupFailed
from splash_core.ids import RankId, StepId
from splash_core.leader.answers import Answers
from splash_core.leader.loading import LoadingProgress
from splash_core.leader.rank_child import RankCommand, exit_text, rank_command
from splash_core.leader.traffic import GroupTraffic
from splash_core.obs.logging import last_lines
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import common_pb2, rank_pb2
from splash_core.rpc.codec import plan_to_pb, result_from_pb
from splash_core.rpc.link import LeaderLink
from splash_core.rpc.rank_config import RankConfig
from splash_core.rpc.traffic import samples_from_pb
from splash_core.scheduling.step import StepPlan, StepResult

_log = logging.getLogger("splash.leader.ranks")
_SETTLE_S = 0.3
"""After a rank's error report or a frame that it did not take, wait for a death: the cause of such echoes."""


@dataclass(slots=True)
class _Reports:
    """What ranks have reported of one step."""

    results: dict[RankId, StepResult] = field(default_factory=dict[RankId, StepResult])
    complete: asyncio.Event = field(default_factory=asyncio.Event)


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
        self._command = command
        self._loading = LoadingProgress(on_loading)
        self._processes: dict[RankId, asyncio.subprocess.Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: dict[RankId, rank_pb2.RankReady] = {}
        self._push_lanes = set[RankId]()
        self._all_ready = asyncio.Event()
        self._reports: dict[StepId, _Reports] = {}
        self._pushes = Answers[tuple[int, RankId], rank_pb2.PushResult]()
        self._fences = Answers[tuple[str, int, RankId], None]()
        self._failure: asyncio.Future[GroupFailed] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self.vitals = VitalTasks(lambda death: self.fail(f"leader: {death}"))
        self.last_progress = time.monotonic()
        self.traffic = GroupTraffic()

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
        self.listen()
        config_path = self._folder / "ranks.json"
        self._config.write(config_path)
        for rank in range(self._config.num_ranks):
            await self._spawn(RankId(rank), config_path, parent_pid)
        late = f"not ready within {timeout_s:g} s"
        await self._wait(self._all_ready, timeout_s, late, lambda: self._ready.keys() & self._push_lanes)
        return tuple(self._ready[RankId(rank)] for rank in range(self._config.num_ranks))

    def listen(self) -> None:
        """Hear what ranks report."""
        self._tasks.append(self.vitals.keep("reader of what ranks report", self._read()))

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
        self._tasks.append(self.vitals.errand(f"watch of rank {rank}", self._watch(rank, process)))

    async def begin(self, plan: StepPlan) -> None:
        """Send one step to all ranks, which begin with it when the one before has ended."""
        self._reports[plan.step] = _Reports()
        await self._send_all(rank_pb2.ToRank(step=plan_to_pb(plan)))

    async def finish(self, step: StepId, *, timeout_s: float) -> tuple[StepResult, ...]:
        """Wait for all ranks' results of the oldest step under way; in rank order.

        Args:
            step: its number.
            timeout_s: a rank that takes longer, from now on, fails the group.
        """
        reports = self._reports[step]
        late = f"did not finish step {step} within {timeout_s:g} s"
        await self._wait(reports.complete, timeout_s, late, reports.results.keys)
        del self._reports[step]
        self.last_progress = time.monotonic()
        self.traffic.step_ended(tuple(reports.results.values()))
        return tuple(reports.results[RankId(rank)] for rank in range(self._config.num_ranks))

    async def push(self, orders: Mapping[RankId, rank_pb2.PushPages]) -> list[rank_pb2.PushResult]:
        """Have ranks write pages into another group's memory; returns every rank's report, however late."""
        waits = list[asyncio.Future[rank_pb2.PushResult]]()
        for rank, order in orders.items():
            waits.append(self._pushes.expect((order.push, rank)))
            await self._send(rank, rank_pb2.ToRank(push=order))
        await asyncio.wait(waits)
        return [await future for future in waits]

    async def cancel_push(self, push: int) -> None:
        """Have ranks end a push early; it is reported all the same."""
        for known, rank in self._pushes.owed:
            if known == push:
                await self._send(rank, rank_pb2.ToRank(cancel_push=push))

    async def fence(self, writer: str, *, term: int) -> None:
        """Have all ranks let a writing group write no more; returns when all have answered, however late."""
        waits = [self._fences.expect((writer, term, RankId(rank))) for rank in range(self._config.num_ranks)]
        await self._send_all(rank_pb2.ToRank(fence=rank_pb2.FenceWriter(writer=writer, term=term)))
        await asyncio.gather(*map(asyncio.shield, waits))

    def fence_owed(self, writer: str) -> list[RankId]:
        """Ranks that have yet to answer that a writing group is fenced."""
        return sorted(rank for known, _, rank in self._fences.owed if known == writer)

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
                    _log.info("stop was not delivered to rank %d: %s", rank, error)
            waits = [asyncio.create_task(process.wait()) for process in self._processes.values()]
            if waits:
                await asyncio.wait(waits, timeout=grace_s)
        self.kill()
        for process in self._processes.values():
            await process.wait()
        self._end_answers(self._stopped())
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
        self._end_answers(error)

    def _end_answers(self, error: GroupFailed) -> None:
        self._pushes.end(error)
        self._fences.end(error)

    def _stopped(self) -> GroupFailed:
        return self.failure or GroupFailed(f"group {self._config.group} is being stopped; try another one")

    async def _send_all(self, message: rank_pb2.ToRank) -> None:
        for rank in range(self._config.num_ranks):
            await self._send(RankId(rank), message)

    async def _send(self, rank: RankId, message: rank_pb2.ToRank) -> None:
        if self.failure is not None or self._stopping:
            raise self._stopped()
        try:
            await self._link.send(rank, message)
        except GroupFailed as error:
            await self._settle(rank, str(error))
            raise self._stopped() from error

    async def _wait(
        self, event: asyncio.Event, timeout_s: float, late: str, have: Callable[[], Collection[RankId]]
    ) -> None:
        done = asyncio.create_task(event.wait())
        try:
            await asyncio.wait([done, self._failure], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            done.cancel()
        if self.failure is None and not event.is_set():
            missing = [rank for rank in range(self._config.num_ranks) if RankId(rank) not in have()]
            self.fail(f"rank {', '.join(map(str, missing))} {late}")
        if self.failure is not None:
            raise self.failure

    async def _watch(self, rank: RankId, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if code > 0:
            # A rank that exits by itself has sent its reason, or has left it in its log.
            await asyncio.sleep(2 * _SETTLE_S)
        lines = last_lines(self._folder / f"rank-{rank}.err", 3) if code >= 0 else ()
        detail = f": {' | '.join(lines)}" if lines else ""
        self.fail(f"rank {rank} (pid {process.pid}) {exit_text(code)}{detail}")

    async def _read(self) -> None:
        while True:
            self._take(*await self._link.receive())

    def _take(self, rank: RankId, message: rank_pb2.FromRank) -> None:
        kind = message.WhichOneof("message")
        if kind == "ready":
            self._ready[rank] = message.ready
            self._note_ready()
        elif kind == "pushes_open":
            self._push_lanes.add(rank)
            self._note_ready()
        elif kind == "loading":
            loading = message.loading
            self._loading.rank_told(rank, done_bytes=loading.done_bytes, total_bytes=loading.total_bytes)
        elif kind == "traffic":
            self.traffic.rank_told(rank, samples_from_pb(message.traffic.samples))
        elif kind == "step":
            self._note_result(rank, result_from_pb(message.step))
        elif kind == "push":
            self._pushes.give((message.push.push, rank), message.push)
        elif kind == "fenced":
            self._fences.give((message.fenced.writer, message.fenced.term, rank), None)
        elif kind == "failure":
            self._tasks.append(self.vitals.errand("end of a rank", self._settle(rank, message.failure.error)))

    def _note_result(self, rank: RankId, result: StepResult) -> None:
        reports = self._reports.get(result.step)
        if reports is None:
            self.fail(f"rank {rank} reports step {result.step}, which is not under way")
            return
        reports.results[rank] = result
        if len(reports.results) == self._config.num_ranks:
            reports.complete.set()

    def _note_ready(self) -> None:
        """A rank is ready once it has said so and its push lane is connected too."""
        if len(self._ready) == len(self._push_lanes) == self._config.num_ranks:
            self._all_ready.set()

    async def _settle(self, rank: RankId, error: str) -> None:
        await asyncio.sleep(_SETTLE_S)
        self.fail(f"rank {rank}: {error}")
