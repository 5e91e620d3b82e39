"""Decode steps as recorded computations, one per (layout, bucket) (docs/model.md §5).

The recorded part runs from token ids to the logits of every home row; sampling follows outside. Before
each replay the step's batch is padded to its bucket and built anew on the host, and its tensors are copied
over those that were recorded. All ranks know all counts, so they choose the same bucket without asking.

Legend: N_j home rows of a rank, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from splash_core.attention.base import LayoutAttention
from splash_core.attention.batch import Batch
from splash_core.attention.context import RankContext
from splash_core.attention.padding import blank_batch, bucket_of, pad_batch
from splash_core.attention.registry import create_attention
from splash_core.engine.decoder import hidden_rows, home_logits
from splash_core.engine.recording import Recorded, Recorder
from splash_core.layout.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """What a layout's graphs cost: to be counted in the memory account and shown."""

    layout: Layout
    bucket: int
    num_bytes: int
    record_s: float


@dataclass(frozen=True, slots=True)
class _Entry:
    context: RankContext
    """The rank's, with an attention backend whose plans live in this entry's buffers."""
    batch: Batch
    attention: LayoutAttention
    recorded: Recorded

    def refresh(self, layout: Layout, batch: Batch) -> None:
        fresh = create_attention(layout, self.context, batch)
        targets = (self.batch.tokens_N, *self.attention.inputs())
        for target, value in zip(targets, (batch.tokens_N, *fresh.inputs()), strict=True):
            target.copy_(value)


class DecodeGraphs:
    """Recorded decode steps of one rank.

    Args:
        ctx: the rank.
        recorder: how steps are recorded.
        static_context: gives the context for a bucket: the rank's own with backends whose shapes and
            buffers do not change from step to step.
        buckets: home rows per rank to record for, ascending.
    """

    def __init__(
        self,
        ctx: RankContext,
        *,
        recorder: Recorder,
        static_context: Callable[[RankContext, int], RankContext],
        buckets: Sequence[int],
    ) -> None:
        self._ctx = ctx
        self._recorder = recorder
        self._static_context = static_context
        self._buckets = tuple(sorted(buckets))
        self._entries: dict[tuple[Layout, int], _Entry] = {}

    def record(self, layout: Layout) -> tuple[GraphReport, ...]:
        """Record every bucket of a layout; all ranks do it in the same order.

        It need not be the present layout: rows that are all padding read and write no KV, and nothing that
        is computed from absent weights is kept.
        """
        reports: list[GraphReport] = []
        for bucket in self._buckets:
            context = self._static_context(self._ctx, bucket)
            padded = blank_batch(context, bucket)
            attention = create_attention(layout, context, padded)

            def run(
                context: RankContext = context, padded: Batch = padded, attention: LayoutAttention = attention
            ) -> Tensor:
                hidden_ND = hidden_rows(context, padded, attention, _in_place)
                logits_NV = home_logits(context, hidden_ND, padded.counts)
                context.comm.settle()
                return logits_NV

            recorded = self._recorder.record(run)
            self._entries[layout, bucket] = _Entry(context, padded, attention, recorded)
            reports.append(
                GraphReport(
                    layout=layout,
                    bucket=bucket,
                    num_bytes=recorded.num_bytes,
                    record_s=recorded.record_s,
                )
            )
        return tuple(reports)

    def covers(self, layout: Layout, batch: Batch) -> bool:
        """True when the step can be replayed: one sampled row per sequence, and few enough of them."""
        bucket = bucket_of(batch.counts, self._buckets)
        decodes = all(sequence.count == 1 and sequence.sample for sequence in batch.sequences)
        return decodes and bucket is not None and (layout, bucket) in self._entries

    def logits(self, layout: Layout, batch: Batch) -> Tensor:
        """`[N_j, V]`: logits of this rank's home rows, valid until the next call."""
        bucket = bucket_of(batch.counts, self._buckets)
        assert bucket is not None
        entry = self._entries[layout, bucket]
        entry.refresh(layout, pad_batch(batch, bucket))
        return entry.recorded.replay()[: batch.counts[batch.rank]]


def _in_place(layer: int) -> None:
    """A recorded step computes over state that is in place."""
