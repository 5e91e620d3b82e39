"""Decode steps as recorded computations, one per (layout, bucket) (docs/decisions, 13).

The recorded part runs from token ids to the logits of every home row; sampling follows outside. Before
each replay the step's batch is padded to its bucket and prepared anew on the host, with its indices going to
the places on the device that were recorded; token ids that only the device knows are then put in their places
there. All ranks know all counts, so they choose the same bucket without asking.

Legend: N_j home rows of a rank, V vocabulary.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from splash_core.attention.base import LayoutAttention
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.attention.padding import blank_batch, bucket_of, pad_batch
from splash_core.attention.registry import create_attention
from splash_core.engine.decoder import hidden_rows, home_logits
from splash_core.engine.recording import Recorded, StepRecorder
from splash_core.kernels.uploads import StepBuffer
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """What a recorded step costs: to be counted in the memory account and shown."""

    layout: Layout
    bucket: int
    num_bytes: int
    """Device memory of the recording, and of the buffers that its inputs are put in."""
    record_s: float


class StaticContexts(Protocol):
    """Makes the context of one recorded step."""

    def __call__(self, ctx: RankContext, layout: Layout, bucket: int, buffer: StepBuffer) -> RankContext:
        """The rank's context with backends whose shapes do not change from step to step.

        Args:
            ctx: the rank.
            layout: of the step.
            bucket: home rows per rank.
            buffer: where the step's indices go.
        """
        ...


def decodes(plan: StepPlan) -> bool:
    """True when a step is of the kind that is recorded: one sampled row of each sequence."""
    return bool(plan.sequences) and all(rows.count == 1 and rows.sample for rows in plan.sequences)


@dataclass(frozen=True, slots=True)
class _CapturedStep:
    layout: Layout
    bucket: int
    context: RankContext
    buffer: StepBuffer

    def prepare(self, batch: Batch) -> LayoutAttention:
        self.buffer.begin()
        attention = create_attention(self.layout, self.context, batch)
        self.buffer.commit()
        return attention


class DecodeGraphs:
    """Recorded decode steps of one rank.

    Args:
        ctx: the rank.
        recorder: how steps are recorded.
        static_context: see `StaticContexts`.
        buckets: home rows per rank to record for.
        buffer_bytes: for the indices of one step.
    """

    def __init__(
        self,
        ctx: RankContext,
        *,
        recorder: StepRecorder,
        static_context: StaticContexts,
        buckets: Sequence[int],
        buffer_bytes: int,
    ) -> None:
        self._ctx = ctx
        self._recorder = recorder
        self._static_context = static_context
        self._buckets = tuple(sorted(buckets))
        self._buffer_bytes = buffer_bytes
        self._recorded: dict[tuple[Layout, int], tuple[_CapturedStep, Recorded]] = {}
        self.replays: Counter[tuple[Layout, int]] = Counter()
        """How often each step was replayed."""

    def record(self, layout: Layout) -> tuple[GraphReport, ...]:
        """Record every bucket of a layout, the largest first; all ranks do it in the same order.

        It need not be the present layout: rows that are all padding read and write no KV, and nothing that
        is computed from absent weights is kept.
        """
        return tuple(self._record(layout, bucket) for bucket in reversed(self._buckets))

    def covers(self, layout: Layout, batch: Batch) -> bool:
        """True when the step can be replayed: one sampled row per sequence, and few enough of them."""
        bucket = bucket_of(batch.counts, self._buckets)
        single = all(sequence.count == 1 and sequence.sample for sequence in batch.sequences)
        return single and bucket is not None and (layout, bucket) in self._recorded

    def logits(self, layout: Layout, batch: Batch, fill: Callable[[Batch, Tensor], None]) -> Tensor:
        """`[N_j, V]`: logits of this rank's home rows, valid until the next call.

        Args:
            layout: of the step.
            batch: its rows.
            fill: given the padded batch and its token ids on the device, replaces those the host lacks.
        """
        bucket = bucket_of(batch.counts, self._buckets)
        assert bucket is not None
        entry, recorded = self._recorded[layout, bucket]
        padded = pad_batch(batch, bucket)
        fill(padded, entry.prepare(padded).tokens_N)
        self.replays[layout, bucket] += 1
        return recorded.replay()[: batch.counts[batch.rank]]

    def _record(self, layout: Layout, bucket: int) -> GraphReport:
        held = self._recorder.held_bytes()
        buffer = StepBuffer(self._ctx.device, self._buffer_bytes)
        context = self._static_context(self._ctx, layout, bucket, buffer)
        entry = _CapturedStep(layout, bucket, context, buffer)
        blank = blank_batch(context, bucket)
        attention = entry.prepare(blank)

        def run() -> Tensor:
            hidden_ND = hidden_rows(context, blank, attention, _in_place)
            logits_NV = home_logits(context, hidden_ND, blank.counts)
            context.comm.settle()
            return logits_NV

        inputs = max(self._recorder.held_bytes() - held, self._buffer_bytes)
        recorded = self._recorder.record(run)
        self._recorded[layout, bucket] = entry, recorded
        return GraphReport(
            layout=layout,
            bucket=bucket,
            num_bytes=inputs + recorded.num_bytes,
            record_s=recorded.record_s,
        )


def _in_place(layer: int) -> None:
    """A recorded step computes over state that is in place."""
