"""One rank under measurement: engine, arena, and the group's plans, all made from the settings.

Invariant: every rank calls the same methods in the same order, so that plans and collectives agree.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch

from services.bench.clock import Clock, StepTimer, StepTiming, clock_of
from services.bench.group import BenchGroup
from services.bench.histories import fill_pages
from services.bench.settings import BenchSettings
from services.bench.shapes import bench_spec
from services.bench.sizing import Demand, arena_bytes
from services.bench.spmd import RankHost
from splash_core.engine.engine import RankEngine
from splash_core.engine.static_backends import decode_graphs
from splash_core.ids import SeqId
from splash_core.kernels.dtypes import BY_NAME
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageCopy
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.spec.model import ModelSpec
from splash_core.switch.chunks import chunk_bytes
from splash_core.switch.manifest import SwitchMode


class Runner(Protocol):
    """What executes plans: an engine, or something faster around one."""

    def step(self, plan: StepPlan) -> StepResult:
        """Execute one plan."""
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
    moved_bytes: int
    """By manifests, on the rank that received most."""
    ahead_bytes: int
    """Copied ahead, on the rank that received most."""
    replayed: int
    """Steps that were replayed from a recording."""


class Rig:
    """See the module.

    Args:
        host: the rank.
        settings: resolved.
        layout: the layout to start in.
        demand: what the arena must hold where it is sized by it (CPU).
    """

    def __init__(self, host: RankHost, settings: BenchSettings, *, layout: Layout, demand: Demand) -> None:
        self.host = host
        self.settings = settings
        self.spec: ModelSpec = bench_spec(settings.model, layers=settings.layers, experts=settings.experts)
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
        self._recorded: dict[Layout, dict[str, float]] = {}
        self.group = BenchGroup(
            self.spec, self.arena, layout, staging_bytes=chunk_bytes(settings.staging_bytes)
        )

    def record_decode(self, layout: Layout, most_rows: Sequence[int]) -> dict[str, float]:
        """Record a layout's decode steps, once; what it took, as fields of a row (nothing where it is off).

        Args:
            layout: of the steps.
            most_rows: numbers of home rows on the fullest rank, the same at every call.
        """
        if self.settings.graphs != "on":
            return {}
        graphs = self.engine.graphs
        if graphs is None:
            graphs = self.engine.graphs = decode_graphs(
                self.engine.ctx, buckets=sorted(set(most_rows)), comm=self.host.comms.recorded
            )
        if layout not in self._recorded:
            with torch.inference_mode():
                reports = graphs.record(layout)
            self._recorded[layout] = {
                "graph_bytes": float(sum(report.num_bytes for report in reports)),
                "record_s": sum(report.record_s for report in reports),
            }
        return self._recorded[layout]

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
        """Execute plans one after the other, as in service; the slowest rank of each figure."""
        comm = self.host.comms.compute
        self.clock.catch_up()
        comm.barrier()
        replays = self._num_replays()
        ends, moved, ahead = [time.perf_counter()], 0, 0
        for plan in plans:
            result = self.runner.step(plan)
            ends.append(time.perf_counter())
            moved += result.switch_bytes_received
            ahead += result.precopy_bytes_received
        self.clock.catch_up()
        mine = [float(moved), float(ahead), *((end - begin) * 1e3 for begin, end in pairwise(ends))]
        worst = [max(column) for column in zip(*self.host.gather(mine), strict=True)]
        return Intervals(
            ms=tuple(worst[2:]),
            moved_bytes=int(worst[0]),
            ahead_bytes=int(worst[1]),
            replayed=self._num_replays() - replays,
        )

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
