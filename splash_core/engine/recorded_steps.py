"""Recording all decode steps that a rank may replay, when it loads: within the memory that is set aside.

Invariant: a rank that serves has recorded everything it was told to; what does not fit ends its start.
"""

import logging
from collections.abc import Sequence

import torch

from splash_core.attention.context import RankContext
from splash_core.dist.comm import Comm
from splash_core.engine.graphs import DecodeGraphs, GraphReport
from splash_core.engine.static_backends import decode_graphs
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.units import format_bytes

_log = logging.getLogger("splash.rank")


@torch.inference_mode()
def record_decode_steps(
    ctx: RankContext, *, layouts: Sequence[Layout], buckets: Sequence[int], comm: Comm, budget_bytes: int
) -> DecodeGraphs:
    """Record each bucket of each layout; all ranks do it in the same order.

    Args:
        ctx: the rank.
        layouts: those that the group may run.
        buckets: home rows per rank.
        comm: what recorded steps talk through.
        budget_bytes: device memory that they may take.

    Raises:
        ConfigError: they take more; names what each layout takes.
    """
    graphs = decode_graphs(ctx, buckets=buckets, comm=comm)
    reports: list[GraphReport] = []
    for layout in layouts:
        reports += graphs.record(layout)
        # As early as may be: what comes next would take memory that something else was promised.
        check_budget(reports, budget_bytes)
    _log.info(
        "recorded decode steps of %d layouts for %s rows a rank: %s, %.1f s",
        len(layouts),
        "/".join(map(str, buckets)),
        format_bytes(sum(report.num_bytes for report in reports)),
        sum(report.record_s for report in reports),
    )
    return graphs


def check_budget(reports: Sequence[GraphReport], budget_bytes: int) -> None:
    """Refuse recordings that take more memory than is set aside for them.

    Raises:
        ConfigError: says what was measured, and what to change.
    """
    taken = sum(report.num_bytes for report in reports)
    if taken <= budget_bytes:
        return
    by_layout = {
        layout: sum(report.num_bytes for report in reports if report.layout is layout)
        for layout in dict.fromkeys(report.layout for report in reports)
    }
    parts = ", ".join(f"{layout} {format_bytes(size)}" for layout, size in by_layout.items())
    buckets = sorted({report.bucket for report in reports})
    raise ConfigError(
        f"recorded decode steps for {'/'.join(map(str, buckets))} rows a rank take {format_bytes(taken)} "
        f"({parts}) of the {format_bytes(budget_bytes)} that --graph-bytes sets aside; raise it, name fewer "
        "--layouts, lower --max-running, or leave recording out with --graphs off"
    )
