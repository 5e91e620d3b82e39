"""The collectives of one recorded decode step, standing alone: what a step cannot be faster than.

A padded step has the same collectives whatever its rows are. They are noted once, then issued again over
buffers of the same sizes, nothing between them, recorded as the steps are where steps are recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from services.bench.clock import median, operation_ms
from services.bench.rig import Rig
from splash_core.dist.comm import Comm
from splash_core.dist.passing import PassingComm
from splash_core.engine.recording import Recorded, StepRecorder
from splash_core.engine.static_backends import decode_graphs, recorder_for
from splash_core.layout.layout import Layout

_REPS, _WARMUP = 20, 3


@dataclass(frozen=True, slots=True)
class Call:
    """One collective on rows."""

    issue: Callable[[Comm, Tensor], Tensor]
    shape: torch.Size
    dtype: torch.dtype


class NotingComm(PassingComm):
    """Passes every call to `inner`, and keeps what rows of which size were given to it."""

    def __init__(self, inner: Comm) -> None:
        super().__init__(inner)
        self.calls: list[Call] = []

    @override
    def all_gather_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        return self._noted(x_NX, lambda comm, rows: comm.all_gather_rows(rows, counts, tag=tag))

    @override
    def all_to_all_rows(
        self, x_NX: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int], *, tag: str
    ) -> Tensor:
        return self._noted(
            x_NX, lambda comm, rows: comm.all_to_all_rows(rows, send_counts, recv_counts, tag=tag)
        )

    @override
    def reduce_scatter_rows(self, x_NX: Tensor, counts: Sequence[int], *, tag: str) -> Tensor:
        return self._noted(x_NX, lambda comm, rows: comm.reduce_scatter_rows(rows, counts, tag=tag))

    @override
    def close(self) -> None:
        """The inner one is closed by whoever made it."""

    def _noted(self, x_NX: Tensor, issue: Callable[[Comm, Tensor], Tensor]) -> Tensor:
        self.calls.append(Call(issue, x_NX.shape, x_NX.dtype))
        return issue(self._inner, x_NX)


class RunOnce(StepRecorder):
    """Runs what is to be recorded once, and keeps its result."""

    @override
    def held_bytes(self) -> int:
        return 0

    @override
    def record(self, run: Callable[[], Tensor]) -> Recorded:
        result = run()
        return Recorded(replay=lambda: result, num_bytes=0, record_s=0.0)


@dataclass(slots=True)
class StepCollectives:
    """Measures on one rank; all ranks ask for the same steps in the same order."""

    rig: Rig
    _known: dict[tuple[Layout, int], dict[str, Any]] = field(default_factory=dict)
    _kept: list[Recorded] = field(default_factory=list)
    """Graphs live as long as the communicator that they hold."""

    def fields(self, layout: Layout, bucket: int) -> dict[str, Any]:
        """Their number and their time in milliseconds, of the slowest rank, as fields of a row.

        Args:
            layout: of the step.
            bucket: home rows on each rank.
        """
        if (layout, bucket) not in self._known:
            with torch.inference_mode():
                self._known[layout, bucket] = self._measure(layout, bucket)
        return self._known[layout, bucket]

    def _measure(self, layout: Layout, bucket: int) -> dict[str, Any]:
        host, device = self.rig.host, self.rig.host.comms.device
        comm = host.comms.recorded if self.rig.settings.graphs == "on" else host.comms.compute
        calls = self._calls(comm, layout, bucket)
        if not calls or host.num_ranks == 1:
            return {"collectives": 0, "collectives_ms": 0.0}
        buffers = {
            (call.shape, call.dtype): torch.zeros(call.shape, dtype=call.dtype, device=device)
            for call in calls
        }

        def run() -> Tensor:
            result = torch.empty(0)
            for call in calls:
                result = call.issue(comm, buffers[call.shape, call.dtype])
            comm.settle()
            return result

        recorded = recorder_for(device).record(run)
        self._kept.append(recorded)
        times = operation_ms(
            self.rig.clock, host.comms.compute, lambda _: recorded.replay(), reps=_REPS, warmup=_WARMUP
        )
        slowest = max(row[0] for row in host.gather([median(times)]))
        return {"collectives": len(calls), "collectives_ms": slowest}

    def _calls(self, comm: Comm, layout: Layout, bucket: int) -> list[Call]:
        noting = NotingComm(comm)
        ctx = replace(self.rig.engine.ctx, comm=noting)
        decode_graphs(ctx, buckets=(bucket,), recorder=RunOnce()).record(layout)
        return noting.calls
