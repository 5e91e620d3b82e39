"""Recorded decode steps for a rank's device: CUDA graphs on a GPU, on a CPU the same steps run again."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from splash_core.attention.context import RankContext
from splash_core.attention.flashinfer_library import GraphBuffers
from splash_core.attention.library_backend import LibraryAttention
from splash_core.attention.registry import attends
from splash_core.attention.static_torch import StaticTorchAttention, StaticTorchKernels
from splash_core.dist.comm import Comm
from splash_core.engine.graphs import DecodeGraphs
from splash_core.engine.recording import CudaGraphs, Rerun, StepRecorder
from splash_core.kernels.base import Kernels
from splash_core.kernels.cuda_kernels import RecordedCudaKernels
from splash_core.kernels.uploads import StepBuffer
from splash_core.layout.layout import Layout

_INDEX_BYTES = 128
"""Of a row's token, position, place and routes, with room to spare."""

_ALIGNMENT_BYTES = 1 << 12
"""For the beginnings of a step's tensors."""


def recorder_for(device: torch.device) -> StepRecorder:
    """How steps are recorded on a device."""
    return CudaGraphs(device) if device.type == "cuda" else Rerun()


def decode_graphs(
    ctx: RankContext,
    *,
    buckets: Sequence[int],
    comm: Comm | None = None,
    recorder: StepRecorder | None = None,
) -> DecodeGraphs:
    """Nothing is recorded yet: see `DecodeGraphs.record`.

    Args:
        ctx: the rank.
        buckets: home rows per rank to record for.
        comm: what recorded steps talk through; default: the rank's compute communicator.
        recorder: how they are recorded; default: as the device does it.
    """
    rows = max(buckets) * ctx.num_ranks
    per_row = _INDEX_BYTES * ctx.num_ranks
    if not isinstance(ctx.attention, LibraryAttention):
        # A table of slots and a mask over their keys, as long as the longest history.
        per_row += max_pages(ctx) * (8 + ctx.arena.map.page_size)
    return DecodeGraphs(
        ctx if comm is None else replace(ctx, comm=comm),
        recorder=recorder or recorder_for(ctx.device),
        static_context=partial(_static_context, _side_stream(ctx.device)),
        buckets=buckets,
        buffer_bytes=_ALIGNMENT_BYTES + rows * per_row,
    )


def max_pages(ctx: RankContext) -> int:
    """Pages of the longest history that a rank can hold."""
    longest = -(-ctx.rotary.num_positions // ctx.arena.map.page_size)
    return min(longest, ctx.arena.map.num_slots)


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """One for all recorded steps of a rank, of which one runs at a time."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def _static_context(
    side: torch.cuda.Stream | None, ctx: RankContext, layout: Layout, bucket: int, buffer: StepBuffer
) -> RankContext:
    kernels: Kernels = (
        StaticTorchKernels(ctx.device, buffer) if side is None else RecordedCudaKernels(buffer, side)
    )
    if not isinstance(ctx.attention, LibraryAttention):
        attention = StaticTorchAttention(kernels, max_pages=max_pages(ctx))
        return replace(ctx, kernels=kernels, attention=attention)
    rows, heads = attends(layout, ctx, bucket)
    pages = ctx.arena.map.num_slots + rows
    graph = ctx.attention.for_graph(GraphBuffers(rows=rows, heads=heads, max_pages=pages))
    return replace(ctx, kernels=kernels, attention=graph)
