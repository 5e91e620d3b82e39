"""`splash bench agreement`: how often two layouts name the same next token, and how far their logits differ.

All of them compute the same sequences, whose tokens are given, so that positions are comparable: prompts from
empty, then one row of each sequence a step. Layouts sum in different orders, and in half types so does the
same layout with another number of rows: that is the yardstick. A *variant* is a layout and a number of
sequences that run side by side.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from services.bench.agreement_figures import Likeness, likeness, spread
from services.bench.forced import ForcedSteps
from services.bench.recorder import RowRecorder
from services.bench.rig import Rig
from services.bench.settings import AgreementSettings, layouts_of
from services.bench.sizing import LargestCell
from services.bench.spmd import RankHost
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout

Variant = tuple[Layout, int]
"""A layout, and how many of the sequences run side by side."""

MOST_POINTS_BELOW = 0.5
"""The target: layouts agree no less than the yardstick less so many points (of 100)."""


def run(host: RankHost, settings: AgreementSettings) -> dict[str, Any]:
    """The program of every rank; returns the document's JSON."""
    layouts, batches = layouts_of(settings.layouts), (settings.batch, settings.yardstick_batch)
    if settings.batch % settings.yardstick_batch or settings.batch == settings.yardstick_batch:
        raise ConfigError(
            f"--batch {settings.batch} must be a multiple of --yardstick-batch "
            f"{settings.yardstick_batch}, and not the same"
        )
    demand = LargestCell(
        layouts=layouts,
        batch=settings.batch,
        tokens=settings.prompt + _steps(settings),
        rows=settings.batch * settings.prompt,
    )
    recorder = RowRecorder("agreement", host, settings)
    recorder.say("making weights")
    runs = _Runs(Rig(host, settings, layout=layouts[0], demand=demand), settings)
    logits: dict[Variant, Tensor] = {}
    for layout in layouts:
        for batch in batches:
            if recorder.begin(f"{layout}, {batch} side by side"):
                logits[layout, batch] = runs.logits((layout, batch))
    if host.leads:
        for row in _rows(logits, settings, host.comms.device):
            recorder.add(row)
    return recorder.document().to_json()


class _Runs:
    """Computes variants on one rank."""

    def __init__(self, rig: Rig, settings: AgreementSettings) -> None:
        self._rig = rig
        self._settings = settings
        self._steps = ForcedSteps(rig)

    def logits(self, variant: Variant) -> Tensor:
        """`[positions, V]` on the rank that reports, in the host's memory; no rows on others."""
        layout, batch = variant
        settings, rig = self._settings, self._rig
        rig.group.clear()
        self._steps.go(layout)
        rig.record_decode(layout, [-(-size // settings.ranks) for size in (settings.batch, batch)])
        parts: list[Tensor] = []
        for first in range(0, settings.batch, batch):
            rig.group.clear()
            rig.group.place(batch, 0, first=first)
            self._steps.cache(rig.group.step(dict.fromkeys(rig.group.seqs, settings.prompt)))
            rows = dict.fromkeys(rig.group.seqs, 1)
            steps_SBV: list[Tensor] = []
            for _ in range(_steps(settings)):
                logits_BV = self._steps.logits(rig.group.step(rows, sampled=rig.group.seqs))
                if rig.host.leads:
                    steps_SBV.append(logits_BV.cpu())
            if steps_SBV:
                parts.append(torch.stack(steps_SBV, dim=1).flatten(0, 1))
        return torch.cat(parts) if parts else torch.empty(0, rig.spec.vocab)


def _steps(settings: AgreementSettings) -> int:
    return -(-settings.positions // settings.batch)


def _rows(
    logits: Mapping[Variant, Tensor], settings: AgreementSettings, device: torch.device
) -> list[dict[str, Any]]:
    """Rows of every layout beside itself, of every pair, and of every variant's distribution."""

    def compare(a: Variant, b: Variant) -> Likeness:
        return likeness(logits[a], logits[b], head_scale=settings.head_scale, device=device)

    batch, other = settings.batch, settings.yardstick_batch
    layouts = [layout for layout, size in logits if size == batch and (layout, other) in logits]
    itself = {layout: compare((layout, batch), (layout, other)) for layout in layouts}
    rows = [_row("batch", (layout, batch), (layout, other), found) for layout, found in itself.items()]
    for a, b in combinations(layouts, 2):
        found = compare((a, batch), (b, batch))
        agreement = (itself[a].agreement + itself[b].agreement) / 2
        below = 100.0 * (agreement - found.agreement)
        yardstick = {
            "yardstick_agreement": agreement,
            "yardstick_kl": (itself[a].divergence + itself[b].divergence) / 2,
            "points_below": below,
            "met": below <= MOST_POINTS_BELOW,
        }
        rows.append(_row("layout", (a, batch), (b, batch), found) | yardstick)
    return rows + [_distribution(variant, logits[variant], settings, device) for variant in logits]


def _row(what: str, a: Variant, b: Variant, found: Likeness) -> dict[str, Any]:
    return {
        "what": what,
        "a": a[0],
        "a_batch": a[1],
        "b": b[0],
        "b_batch": b[1],
        "positions": len(found.same_N),
        "agreement": found.agreement,
        "agreement_error": found.agreement_error,
        "kl_mean": found.divergence,
        "kl_p99": float(found.divergence_N.quantile(0.99)),
        "widest_margin_crossed": found.widest_margin_crossed,
    }


def _distribution(
    variant: Variant, logits_NV: Tensor, settings: AgreementSettings, device: torch.device
) -> dict[str, Any]:
    seen = spread(logits_NV, head_scale=settings.head_scale, device=device)
    return {
        "what": "distribution",
        "a": variant[0],
        "a_batch": variant[1],
        "positions": len(logits_NV),
        "margin_p10": seen.margin(0.1),
        "margin_p50": seen.margin(0.5),
        "margin_p90": seen.margin(0.9),
        "ties": seen.ties,
        "entropy_p50": seen.entropy,
        "logit_deviation": seen.deviation,
    }
