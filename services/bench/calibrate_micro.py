"""One operation at a time, on all ranks at once: what identifies a constant of θ before steps adjust it.

Each figure is of the slowest rank. Operations take another layer each time, so that no cache holds what they
read. The attention that is timed is the engine's own, prepared from a step's plan.

Legend: N rows, H heads, C = r + p, D = n + p, d hidden.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.bench.clock import median, operation_ms
from services.bench.rig import Rig
from splash_core.attention.batch import Batch, build_batch
from splash_core.cost.links import Collective
from splash_core.cost.load import OwnerLoad, Rows
from splash_core.cost.samples import rows_text
from splash_core.dist.comm import Comm
from splash_core.engine.recording import Recorded
from splash_core.engine.static_backends import recorder_for
from splash_core.ids import SeqId
from splash_core.layout.forms import AttentionForm
from splash_core.layout.layout import Matrix, Projection
from splash_core.layout.slots import matrix_elements

_PRODUCT_ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096)
_MESSAGE_BYTES = tuple(1 << exponent for exponent in range(10, 24, 2))
_SHORT = 64
"""Cached tokens where attention is not what is measured."""
_AT_ONCE = 4
"""Collectives in one measurement."""

_DECODES = {
    "cpu": ((8, 1, 512), (2, 1, 256), (16, 1, 256)),
    "cuda": ((8, 1, 8192), (4, 1, 2048), (32, 1, 2048)),
}
_CHUNKS = {
    "cpu": ((1, 64, 256), (1, 256, 0), (4, 16, 128)),
    "cuda": ((1, 2048, 0), (1, 2048, 8192), (4, 512, 2048)),
}
"""Requests of a rank, rows and cached tokens of each; what is larger than the grid's steps is left out."""

Row = dict[str, Any]


def _send(comm: Comm, kind: Collective, all_NX: Tensor) -> Tensor:
    """One row from each rank to each."""
    ones, tag = [1] * comm.size, f"micro.{kind.value}"
    match kind:
        case Collective.GATHER:
            return comm.all_gather_rows(all_NX[:1], ones, tag=tag)
        case Collective.EXCHANGE:
            return comm.all_to_all_rows(all_NX, ones, ones, tag=tag)
        case Collective.SCATTER:
            return comm.reduce_scatter_rows(all_NX, ones, tag=tag)


class Micro:
    """The measurements of one rank.

    Args:
        rig: in a layout that replicates all projections and owns histories, empty.
        reps: repetitions; the least counts.
        most_rows: of the largest step.
        most_tokens: that one batch may cache.
    """

    def __init__(self, rig: Rig, *, reps: int, most_rows: int, most_tokens: int) -> None:
        self._rig = rig
        self._reps = reps
        self._most_rows = most_rows
        self._most_tokens = most_tokens
        self._kept: list[Recorded] = []
        """Graphs live as long as the communicator that they hold."""

    def rows(self) -> Iterator[Row]:
        """All figures, as rows of the document."""
        with torch.inference_mode():
            yield from self._products()
            yield from self._collectives()
            for form in (AttentionForm.ABSORBED, AttentionForm.EXPANDED):
                yield from self._attention(form)
            yield from self._outside()

    def _products(self) -> Iterator[Row]:
        """Rows times the largest projection: of all layers together it should exceed every cache."""
        ctx, kind = self._rig.engine.ctx, Projection.REPLICATED
        largest = max(Matrix, key=lambda matrix: matrix_elements(ctx.spec, matrix))
        views = [ctx.arena.projection(layer, largest, kind) for layer in range(self._layers)]
        matrices = [view.view(-1, view.shape[-1]) for view in views]
        for count in _PRODUCT_ROWS:
            if count > self._most_rows:
                return
            x_NX = torch.randn(count, matrices[0].shape[1], dtype=ctx.dtype, device=ctx.device)
            ms = self._least_ms(lambda rep, x_NX=x_NX: torch.matmul(x_NX, matrices[rep % self._layers].T))
            yield {
                "micro": "product",
                "rows": count,
                "flops": 2 * count * matrices[0].numel(),
                "bytes": matrices[0].nbytes,
                "ms": ms,
            }

    def _collectives(self) -> Iterator[Row]:
        host, ctx = self._rig.host, self._rig.engine.ctx
        if host.num_ranks == 1:
            return
        for size in _MESSAGE_BYTES:
            each = max(size // host.num_ranks // ctx.dtype.itemsize, 1)
            all_NX = torch.zeros(host.num_ranks, each, dtype=ctx.dtype, device=ctx.device)
            received = (host.num_ranks - 1) * each * ctx.dtype.itemsize
            for kind in Collective:
                for name, comm in self._comms().items():
                    ms = self._recorded_ms(comm, kind, all_NX)
                    yield {"micro": kind.value, "comm": name, "bytes": received, "ms": ms}

    def _comms(self) -> dict[str, Comm]:
        comms = self._rig.host.comms
        recorded = {} if comms.small is None else {"recorded": comms.recorded}
        return {"compute": comms.compute, **recorded}

    def _recorded_ms(self, comm: Comm, kind: Collective, all_NX: Tensor) -> float:
        """Of one of several collectives in a row; recorded in a graph where steps are."""

        def run() -> Tensor:
            result = all_NX
            for _ in range(_AT_ONCE):
                result = _send(comm, kind, all_NX)
            comm.settle()
            return result

        recorded = recorder_for(self._rig.host.comms.device).record(run)
        self._kept.append(recorded)
        return self._least_ms(lambda _: recorded.replay()) / _AT_ONCE

    def _attention(self, form: AttentionForm) -> Iterator[Row]:
        """Rows of home requests over their histories: decode rows in the first form, chunks in both."""
        device = self._rig.host.comms.device.type
        shapes = (*(_DECODES[device] if form is AttentionForm.ABSORBED else ()), *_CHUNKS[device])
        for requests, rows, history in shapes:
            fits = requests * (rows + history) * self._rig.host.num_ranks <= self._most_tokens
            if fits and rows * requests <= self._most_rows:
                yield self._attend(form, requests, rows, history)

    def _attend(self, form: AttentionForm, requests: int, rows: int, history: int) -> Row:
        rig = self._rig
        spec, group = rig.spec, rig.group
        group.put([(history, index) for index in range(requests * group.arena.num_ranks)])
        batch = self._batch(dict.fromkeys(group.seqs, rows), form)
        ctx = rig.engine.ctx
        home_N = np.arange(batch.num_rows)[batch.home]
        prepared = ctx.attention.paged(batch, home_N)
        width = spec.qk_dim if form is AttentionForm.EXPANDED else spec.kv_row
        q_NHX = torch.randn(len(home_N), spec.heads, width, dtype=ctx.dtype, device=ctx.device)

        def attend(rep: int) -> Tensor:
            if form is AttentionForm.ABSORBED:
                return prepared.latent(ctx, rep % self._layers, q_NHX)[0]
            kind = Projection.REPLICATED
            return prepared.values(ctx, rep % self._layers, q_NHX, kind=kind, form=form)

        ms = self._least_ms(attend)
        group.clear()
        one = OwnerLoad.of(Rows(rows, history), top_k=None)
        return {
            "micro": "attend",
            "form": form.value,
            "rows": rows * requests,
            "pairs": one.pairs * requests,
            "keys": one.keys * requests,
            "runs": requests if rows > 1 else 0,
            "ms": ms,
        }

    def _outside(self) -> Iterator[Row]:
        """Decode steps without their layers; only where steps are not recorded, and so have marks."""
        rig, group = self._rig, self._rig.group
        if rig.host.comms.device.type != "cpu" or self._layers < 2:
            return
        for each in (1, 4, 16):
            items = [Rows(1, _SHORT, index) for index in range(each * rig.host.num_ranks)]
            group.put([(item.context, item.owner) for item in items])
            steps = [rig.timed(plan) for plan in group.decode_ahead(self._reps + 2)][2:]
            # The last layer's time runs to the end of the step.
            beside = [step.total - self._layers * median(step.computes[:-1]) for step in steps]
            group.clear()
            yield {
                "micro": "outside",
                "layout": group.layout.value,
                "ranks": rig.host.num_ranks,
                "requests": rows_text(items),
                "ms": max(median(beside), 1e-3),
            }

    def _batch(self, rows: dict[SeqId, int], form: AttentionForm) -> Batch:
        group = self._rig.group
        plan = replace(group.step(rows), form=form)
        tables = {
            update.seq: np.asarray(update.slots.slots, dtype=np.int64).reshape(-1, group.arena.num_ranks)
            for update in plan.tables
        }
        return build_batch(
            plan,
            tables,
            rank=self._rig.host.rank,
            num_ranks=group.arena.num_ranks,
            page_size=group.arena.page_size,
        )

    @property
    def _layers(self) -> int:
        return self._rig.spec.num_mla_layers

    def _least_ms(self, operation: Callable[[int], object]) -> float:
        """The least of the repetitions, of the slowest rank: what is attainable, whoever else is at work."""
        rig = self._rig
        mine = operation_ms(rig.clock, rig.host.comms.compute, operation, reps=self._reps, warmup=2)
        return max(row[0] for row in rig.host.gather([min(mine)]))
