"""`splash bench capacity`: distinct tokens that really fit, next to what the memory account says.

The arena is allocated on the device beside the model; each layout fills the page pools of all ranks with
requests of one page until none fits any more, and then runs one step of the largest size, all of its rows
owned by one rank, to show that the working memory which the account sets aside suffices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from services.bench.recorder import RowRecorder
from services.bench.rig import Rig
from services.bench.settings import CapacitySettings, layouts_of, sizes
from services.bench.sizing import LargestCell, device_account
from services.bench.spmd import RankHost
from splash_core.ids import RankId
from splash_core.layout.layout import RULES, Layout
from splash_core.layout.memory import MemoryAccount
from splash_core.layout.ownership import PageTable
from splash_core.layout.slots import ArenaMap

_CPU_ROWS = 256


def run(host: RankHost, settings: CapacitySettings) -> dict[str, Any]:
    """The program of every rank; returns the document's JSON."""
    layouts = layouts_of(settings.layouts)
    rows = settings.chunk_tokens if settings.device == "cuda" else min(settings.chunk_tokens, _CPU_ROWS)
    recorder = RowRecorder("capacity", host, settings)
    recorder.say("allocating arena and weights")
    demand = LargestCell(layouts=layouts, batch=1, tokens=rows, rows=rows)
    rig = Rig(host, settings, layout=layouts[0], demand=demand)
    account = _account_of(rig, layouts)
    fullest = [-(-batch // settings.ranks) for batch in sizes(settings.batch, "--batch")]
    for layout in layouts:
        if recorder.begin(str(layout)):
            filled = fill(rig.arena, layout)
            row = {
                "layout": layout,
                "pool_tokens_per_rank": filled.rank_tokens,
                "distinct_tokens": filled.distinct_tokens,
                "account_tokens": account.distinct_tokens(layout),
                "ratio": filled.distinct_tokens / account.distinct_tokens(layout),
            }
            row |= _recorded(rig, layout, fullest)
            recorder.add(row | _largest_step(rig, layout, rows, account))
    return recorder.document().to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What the pools took."""

    rank_tokens: int
    """Tokens in the fullest rank's pool."""
    distinct_tokens: int


def fill(arena: ArenaMap, layout: Layout) -> Filled:
    """Give out pages of one-page requests, owners in turn, until every rank's pool is full."""
    table, rule = PageTable(arena), RULES[layout]
    held, refused, turn = [0] * arena.num_ranks, 0, 0
    while refused < arena.num_ranks:
        owner = RankId(turn % arena.num_ranks)
        placement = rule.placement(num_ranks=arena.num_ranks, owner=owner, rotation=turn)
        ranks = placement.ranks_of_page(0)
        turn += 1
        if table.new_page(ranks, lent=rule.lends) is None:
            refused += 1
            continue
        refused = 0
        for rank in ranks:
            held[rank] += 1
    return Filled(rank_tokens=max(held) * arena.page_size, distinct_tokens=table.num_pages * arena.page_size)


def _account_of(rig: Rig, layouts: tuple[Layout, ...]) -> MemoryAccount:
    """The account of docs/model.md §2; its M_other is what the budget leaves beside the one arena."""
    account = device_account(rig.spec, rig.settings, rows=0)
    other = account.budget_bytes - rig.arena.arena_bytes
    return replace(account, other_bytes=dict.fromkeys(layouts, other))


def _recorded(rig: Rig, layout: Layout, fullest: Sequence[int]) -> dict[str, Any]:
    """What recorded decode steps take, by home rows per rank; nothing where none are."""
    reports = rig.recordings(layout, fullest)
    if not reports:
        return {}
    return {
        "graph_bytes": {str(report.bucket): report.num_bytes for report in reports},
        "record_s": sum(report.record_s for report in reports),
        "graph_budget_bytes": rig.settings.graph_bytes,
    }


def _largest_step(rig: Rig, layout: Layout, rows: int, account: MemoryAccount) -> dict[str, Any]:
    """Memory of the device during a step of `rows` rows of one request; nothing on CPU."""
    device = rig.host.comms.device
    if device.type != "cuda":
        return {}
    rig.group.clear()
    rig.go(layout)
    rig.place(1, 0)
    torch.cuda.reset_peak_memory_stats(device)
    rig.run(rig.group.step(dict.fromkeys(rig.group.seqs, rows), sampled=rig.group.seqs))
    used = {"peak_bytes": rig.peak_bytes(), "used_bytes": rig.used_bytes()}
    return used | {"budget_bytes": account.budget_bytes}
