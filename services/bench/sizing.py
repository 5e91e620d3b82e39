"""How large a rank's arena is: a part of a GPU's memory, or on CPU what the cells of a run need.

Pure arithmetic but for one look at the device. Invariant: equal on all ranks of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.bench.room import check_pages
from services.bench.settings import ALONE, BenchSettings
from splash_core.cost.footprint import Deployment, memory_account
from splash_core.cost.precision import named_precision
from splash_core.errors import Infeasible
from splash_core.ids import RankId
from splash_core.kernels.dtypes import BY_NAME
from splash_core.layout.layout import RULES, Layout, Matrix
from splash_core.layout.memory import MemoryAccount
from splash_core.layout.slots import can_shard, matrix_elements, page_bytes, place_matrices
from splash_core.spec.hardware import GpuSpec, named_gpu
from splash_core.spec.model import ModelSpec
from splash_core.units import format_bytes

_SPARE = 1.25
"""Slots per slot needed: switches move pages to free slots, as they do in service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestCell:
    """The largest cell of a run."""

    layouts: Sequence[Layout]
    batch: int
    tokens: int
    """Of each request, its rows in a step included."""
    rows: int
    """Of the largest step."""


def arena_bytes(spec: ModelSpec, settings: BenchSettings, demand: LargestCell) -> int:
    """Bytes of a rank's arena.

    Raises:
        Infeasible: the memory fraction leaves no room for it.
    """
    if settings.arena_bytes:
        return settings.arena_bytes
    if settings.device == "cpu":
        return _needed_bytes(spec, settings, demand)
    account = device_account(spec, settings, rows=demand.rows)
    room = account.budget_bytes - max(account.other_bytes[layout] for layout in demand.layouts)
    if room <= 0:
        raise Infeasible(
            f"{format_bytes(account.budget_bytes)} of device memory do not hold the model and a step of "
            f"{demand.rows} rows beside an arena; lower --layers, --experts or the rows of a step"
        )
    return room


def device_account(spec: ModelSpec, settings: BenchSettings, *, rows: int) -> MemoryAccount:
    """The memory account of this machine's device (docs/model.md §2).

    Args:
        spec: the model.
        settings: resolved; the GPU, or on CPU an imagined device of 4 GiB.
        rows: of the largest step.
    """
    runtime = device_kind(settings).runtime_bytes
    return memory_account(
        spec,
        Deployment(
            precision=named_precision(settings.dtype),
            num_ranks=settings.ranks,
            memory_bytes=device_memory(settings),
            fraction=settings.memory_fraction,
            page_size=settings.page_size,
            chunk_tokens=rows,
            runtime_bytes=runtime,
            graph_bytes=settings.graph_bytes if settings.graphs == "on" else 0,
        ),
    )


def device_kind(settings: BenchSettings) -> GpuSpec:
    """Attainable rates of this machine's devices."""
    return named_gpu("cpu" if settings.device == "cpu" else "h200")


def device_memory(settings: BenchSettings) -> int:
    """Bytes of one rank's device."""
    if settings.device == "cpu":
        return device_kind(settings).memory_bytes
    gpus = 1 if settings.backend == ALONE else settings.ranks
    return min(torch.cuda.get_device_properties(gpu).total_memory for gpu in range(gpus))


def _needed_bytes(spec: ModelSpec, settings: BenchSettings, demand: LargestCell) -> int:
    elem = BY_NAME[settings.dtype].itemsize
    slot = page_bytes(spec, page_size=settings.page_size, elem_bytes=elem)
    pages = -(-demand.tokens // settings.page_size)
    check_pages(settings, requests=demand.batch, pages=pages, slot_bytes=slot)
    places = place_matrices(
        {matrix: matrix_elements(spec, matrix) * elem for matrix in Matrix},
        layers=spec.num_mla_layers,
        shards=settings.ranks if can_shard(spec, settings.ranks) else 1,
        slot_bytes=slot,
    )
    region = -(-max(place.end for place in places.values()) // slot)
    pages = max(_pages_on_fullest(settings, demand, layout) for layout in demand.layouts)
    return (region + int(pages * _SPARE) + demand.batch + 1) * slot


def _pages_on_fullest(settings: BenchSettings, demand: LargestCell, layout: Layout) -> int:
    pages = -(-demand.tokens // settings.page_size)
    counts = [0] * settings.ranks
    for request in range(demand.batch):
        owner = RankId(request % settings.ranks)
        placement = RULES[layout].placement(num_ranks=settings.ranks, owner=owner, rotation=request)
        for index in range(pages):
            for rank in placement.ranks_of_page(index):
                counts[rank] += 1
    return max(counts)
