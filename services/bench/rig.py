"""One rank under measurement: engine, arena, and the group's plans, all made from the settings.

Invariant: every rank calls the same methods in the same order, so that plans and collectives agree.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch

from services.bench.clock import Clock, StepTimer, StepTiming, clock_of
from services.bench.group import BenchGroup
from services.bench.histories import fill_pages
from services.bench.run_delay import run_delay_s
from services.bench.settings import BenchSettings
from services.bench.shapes import measured_spec
from services.bench.sizing import LargestCell, arena_bytes
from services.bench.spmd import RankHost
from splash_core.engine.engine import RankEngine
from splash_core.engine.graphs import GraphReport
from splash_core.engine.recorded_steps import check_budget
from splash_core.engine.running import RunningStep
from splash_core.engine.static_backends import decode_graphs
from splash_core.ids import SeqId
from splash_core.kernels.dtypes import BY_NAME
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageCopy
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.scheduling.under_way import MOST_UNDER_WAY
from splash_core.spec.model import ModelSpec
from splash_core.switch.chunks import chunk_bytes
from splash_core.switch.manifest import SwitchMode


class Runner(Protocol):
    """What executes plans: an engine, or something faster around one."""

    def step(self, plan: StepPlan) -> StepResult:
        """Execute one plan and wait for it."""
        ...

    def begin(self, plan: StepPlan) -> RunningStep:
        """Begin with one plan, perhaps behind another."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """One step of the group: the slowest rank of each figure, in milliseconds."""

    total: float
    start: float
    waits: tuple[float, ...]
    computes: tuple[float, ...]
    transfers: tuple[float, ...]
    """Time that each layer's moves took, of a switch that moves something."""
    received_bytes: int
    """Of a switch, by the rank that received most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Steps of the group in a row."""

    ms: tuple[float, ...]
    """From the end of each step to the end of the next; the first from a common start."""
    moved_bytes: tuple[int, ...]
    """By the manifest of each step, on the rank that received most."""
    ahead_bytes: int
    """Copied ahead, on the rank that received most."""
    delayed_ms: tuple[float, ...]
    """Of `ms`, what the rank that waited longest for a CPU waited for it."""
    replayed: tuple[bool, ...]
    """Which steps were replayed from a recording."""


class Rig:
    """See the module.

    Args:
        host: the rank.
        settings: resolved.
        layout: the layout to start in.
        demand: what the arena must hold where it is sized by it (CPU).
    """

    def __init__(
        self, host: RankHost, settings: BenchSettings, *, layout: Layout, demand: LargestCell
    ) -> None:
        self.host = host
        self.settings = settings
        self.spec: ModelSpec = measured_spec(settings.model, layers=settings.layers, experts=settings.experts)
        self.dtype = BY_NAME[settings.dtype]
        self.arena = ArenaMap.build(
            self.spec,
            num_ranks=settings.ranks,
            page_size=settings.page_size,
            elem_bytes=self.dtype.itemsize,
            arena_bytes=arena_bytes(self.spec, settings, demand),
        )
        device = host.comms.device
        self.memory = torch.zeros(self.arena.arena_bytes, dtype=torch.uint8, device=device)
        self.engine = RankEngine.random(
            settings.seed,
            spec=self.spec,
            arena=self.arena,
            memory=self.memory,
            comms=host.comms if settings.moves == "auto" else replace(host.comms, sharing=None),
            dtype=self.dtype,
            layout=layout,
        )
        self.engine.layers_ahead = settings.switch_layers_ahead
        self.engine.reserve_staging(settings.staging_bytes)
        self.runner: Runner = self.engine
        """The one place through which plans are executed."""
        self.clock: Clock = clock_of(device)
        self._timer = StepTimer(self.clock)
        self.engine.mark = self._timer.mark
        self._recorded: dict[Layout, tuple[GraphReport, ...]] = {}
        self.group = BenchGroup(
            self.spec, self.arena, layout, staging_bytes=chunk_bytes(settings.staging_bytes)
        )

    def record_decode(self, layout: Layout, most_rows: Sequence[int]) -> dict[str, float]:
        """Record a layout's decode steps, once; what it took, as fields of a row (nothing where it is off).

        Args:
            layout: of the steps.
            most_rows: numbers of home rows on the fullest rank, the same at every call.

        Raises:
            ConfigError: all that is recorded takes more memory than is set aside.
        """
        reports = self.recordings(layout, most_rows)
        if not reports:
            return {}
        return {
            "graph_bytes": float(sum(report.num_bytes for report in reports)),
            "record_s": sum(report.record_s for report in reports),
        }

    def recordings(self, layout: Layout, most_rows: Sequence[int]) -> tuple[GraphReport, ...]:
        """As `record_decode`, with a report for each number of rows; the fullest rank of each figure."""
        if self.settings.graphs != "on":
            return ()
        graphs = self.engine.graphs
        if graphs is None:
            graphs = self.engine.graphs = decode_graphs(
                self.engine.ctx, buckets=sorted(set(most_rows)), comm=self.host.comms.recorded
            )
        if layout not in self._recorded:
            with torch.inference_mode():
                self._recorded[layout] = self._fullest(graphs.record(layout))
            reports = [report for kept in self._recorded.values() for report in kept]
            check_budget(reports, self.settings.graph_bytes)
        return self._recorded[layout]

    def _fullest(self, reports: Sequence[GraphReport]) -> tuple[GraphReport, ...]:
        figures = [value for report in reports for value in (float(report.num_bytes), report.record_s)]
        worst = [max(column) for column in zip(*self.host.gather(figures), strict=True)]
        return tuple(
            replace(report, num_bytes=int(worst[2 * at]), record_s=worst[2 * at + 1])
            for at, report in enumerate(reports)
        )

    def place(self, batch: int, history: int) -> None:
        """Histories in place, filled with random rows, in the present layout.

        Raises:
            Infeasible: they do not fit.
        """
        self.group.place(batch, history)
        self.fill()

    def fill(self) -> None:
        """Random rows in all pages of the requests in place."""
        table = self.group.table
        self.fill_pages((int(page), table.copies(page)) for page in table.pages)

    def fill_pages(self, pages: Iterable[tuple[int, Sequence[PageCopy]]]) -> None:
        """Random rows in this rank's copies of pages; see `histories`."""
        fill_pages(self.engine.ctx.arena, pages, rank=self.host.rank, seed=self.settings.seed)

    def go(self, layout: Layout, mode: SwitchMode = SwitchMode.BLOCKING) -> None:
        """Switch without rows and without a clock; nothing where the group is in `layout` already."""
        if self.group.layout is not layout:
            self.runner.step(self.group.switch(layout, mode, {}))

    def run(self, plan: StepPlan) -> StepResult:
        """Execute a plan without a clock."""
        return self.runner.step(plan)

    def timed(self, plan: StepPlan) -> TimedStep:
        """Execute a plan from a common start; the slowest rank counts."""
        results: list[StepResult] = []
        timing = self._timer.time(self.host.comms.compute, lambda: results.append(self.runner.step(plan)))
        transfers = [seconds * 1e3 for seconds in self.engine.switch_times.layer_transfer_s]
        return self._slowest(timing, transfers, results[0].switch_bytes_received)

    def intervals(self, plans: Sequence[StepPlan]) -> Intervals:
        """Execute plans one after the other, as in service; the slowest rank of each figure.

        As a leader does it: one step ahead of the results, but a step with a manifest waits for those before.
        """
        comm = self.host.comms.compute
        self.clock.catch_up()
        comm.barrier()
        ends, moved, ahead = [time.perf_counter()], list[float](), 0
        delays, replayed = [run_delay_s()], list[bool]()
        for result in self._results(plans, replayed):
            ends.append(time.perf_counter())
            delays.append(run_delay_s())
            moved.append(float(result.switch_bytes_received))
            ahead += result.precopy_bytes_received
        self.clock.catch_up()
        spans = [(end - begin) * 1e3 for times in (ends, delays) for begin, end in pairwise(times)]
        mine, count = [float(ahead), *moved, *spans], len(plans)
        worst = [max(column) for column in zip(*self.host.gather(mine), strict=True)]
        return Intervals(
            ms=tuple(worst[1 + count : 1 + 2 * count]),
            moved_bytes=tuple(map(int, worst[1 : 1 + count])),
            ahead_bytes=int(worst[0]),
            delayed_ms=tuple(worst[1 + 2 * count :]),
            replayed=tuple(replayed),
        )

    def _results(self, plans: Sequence[StepPlan], replayed: list[bool]) -> Iterator[StepResult]:
        running: deque[RunningStep] = deque()
        for plan in plans:
            while running and (len(running) == MOST_UNDER_WAY or plan.manifest is not None):
                yield running.popleft().finish()
            replays = self._num_replays()
            running.append(self.runner.begin(plan))
            replayed.append(self._num_replays() > replays)
        while running:
            yield running.popleft().finish()

    def even_rows(self, total: int) -> Mapping[SeqId, int]:
        """`total` rows over all requests in place, counts differing by at most one."""
        each, more = divmod(total, len(self.group.seqs))
        counts = {seq: each + (index < more) for index, seq in enumerate(self.group.seqs)}
        return {seq: count for seq, count in counts.items() if count}

    def peak_bytes(self) -> int:
        """Most memory that tensors took on the fullest rank, the arena included; 0 on CPU."""
        device = self.host.comms.device
        mine = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        return int(max(row[0] for row in self.host.gather([float(mine)])))

    def used_bytes(self) -> int:
        """Memory in use on the fullest device, whoever holds it; 0 on CPU."""
        device, used = self.host.comms.device, 0
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            used = total - free
        return int(max(row[0] for row in self.host.gather([float(used)])))

    def _num_replays(self) -> int:
        graphs = self.engine.graphs
        return 0 if graphs is None else graphs.replays.total()

    def _slowest(self, timing: StepTiming, transfers: Sequence[float], received_bytes: int) -> TimedStep:
        layers = len(timing.waits)
        mine = [
            timing.total,
            timing.start,
            float(received_bytes),
            *timing.waits,
            *timing.computes,
            *transfers,
        ]
        worst = tuple(max(column) for column in zip(*self.host.gather(mine), strict=True))
        return TimedStep(
            total=worst[0],
            start=worst[1],
            received_bytes=int(worst[2]),
            waits=worst[3 : 3 + layers],
            computes=worst[3 + layers : 3 + 2 * layers],
            transfers=worst[3 + 2 * layers :],
        )
