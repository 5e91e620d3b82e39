"""Our prediction against the paper's measured winners, point by point.

Nothing here is fitted to the points. A layout's time is that of a whole batch through prefill, link and
decode (`end_to_end`), as the paper measures it. Invariant: the same model, devices and points give the same
report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from splash_core.cost.footprint import Deployment, memory_account
from splash_core.cost.model import CostModel
from splash_core.cost.profile import HardwareProfile, analytical_profile
from splash_core.errors import ConfigError
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.policy.config import PolicyConfig
from splash_core.policy.end_to_end import PricedPair, batch_time
from splash_core.policy.paper import OUTPUT_TOKENS, PAPER_SWEEPS, MeasuredPoint, PaperSweeps
from splash_core.policy.snapshot import LayoutPool
from splash_core.spec.hardware import GpuSpec
from splash_core.spec.model import ModelSpec

MARGIN = PolicyConfig().margin
"""The policy's default margin: it would not switch for a smaller lead."""
HANDOFF_BPS = 45e9
"""One 400 Gb/s port a rank, nine tenths of it: the paper does not say."""
_DECODE_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPoint:
    """One measured position, and what is predicted there."""

    measured: MeasuredPoint
    tokens_per_s: Mapping[Layout, float]
    """Predicted total throughput of each layout that can hold a request, best first."""

    @property
    def choice(self) -> Layout:
        """The layout predicted best."""
        return next(iter(self.tokens_per_s))

    @property
    def agrees(self) -> bool:
        """True when the choice is a winner that the text leaves possible."""
        return self.choice in self.measured.winners

    @property
    def behind(self) -> float:
        """How far the measured winner (the best of those possible) is behind the choice, as we predict it."""
        best = self.tokens_per_s[self.choice]
        return 1 - max(self.tokens_per_s.get(layout, 0.0) for layout in self.measured.winners) / best

    @property
    def within_margin(self) -> bool:
        """True when the policy would not leave the measured winner for its choice."""
        return self.behind <= MARGIN / (1 + MARGIN)

    @property
    def loss(self) -> tuple[float, float] | None:
        """How far the choice is from the measured best, by the paper's figures; None where it gives none."""
        measured = self.measured
        if measured.winner is None:
            return None
        if self.choice is measured.winner:
            return 0.0, 0.0
        values = measured.tokens_per_s
        if self.choice in values and measured.winner in values:
            lost = 1 - values[self.choice] / values[measured.winner]
            return lost, lost
        lead = measured.lead
        if lead is None or self.choice is not lead.runner_up:
            return None
        return 1 - 1 / (1 + lead.least), 1 - 1 / (1 + lead.most)

    def to_json(self) -> dict[str, Any]:
        """One row of the report."""
        measured = self.measured
        return {
            "sweep": measured.sweep,
            "batch": measured.batch,
            "input": measured.input_tokens,
            "measured": [layout.value for layout in measured.winners],
            "source": measured.source,
            "predicted": {layout.value: round(rate, 1) for layout, rate in self.tokens_per_s.items()},
            "choice": self.choice.value,
            "agrees": self.agrees,
            "winner_behind": round(self.behind, 4),
            "within_margin": self.within_margin,
            "measured_loss": None if self.loss is None else [round(part, 4) for part in self.loss],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperComparison:
    """All points of one platform."""

    sweeps: PaperSweeps
    chunk_tokens: int
    points: tuple[ComparedPoint, ...]

    @property
    def named(self) -> tuple[ComparedPoint, ...]:
        """Points whose winner the text names."""
        return tuple(point for point in self.points if point.measured.winner is not None)

    @property
    def agreeing(self) -> int:
        """Of those, where our choice is the winner."""
        return sum(point.agrees for point in self.named)

    @property
    def close(self) -> int:
        """Of those, where the policy would not leave the winner."""
        return sum(point.within_margin for point in self.named)

    def by_winner(self) -> Mapping[Layout, tuple[int, int, int]]:
        """Winner → (points, agreeing, within the margin)."""
        return {
            layout: (
                len(mine := [point for point in self.named if point.measured.winner is layout]),
                sum(point.agrees for point in mine),
                sum(point.within_margin for point in mine),
            )
            for layout in STANDARD_LAYOUTS
        }

    def to_json(self) -> dict[str, Any]:
        """The report in the shape of `splash plan --compare paper --json`."""
        return {
            "gpu": self.sweeps.gpu,
            "model": self.sweeps.model,
            "points": len(self.points),
            "named": len(self.named),
            "agreeing": self.agreeing,
            "within_margin": self.close,
            "margin": MARGIN,
            "rows": [point.to_json() for point in self.points],
        }


def compare_with_paper(
    spec: ModelSpec, gpu: GpuSpec, deployment: Deployment, profile: HardwareProfile | None = None
) -> PaperComparison:
    """The prefill group of `deployment`, with the paper's decode group behind it, at every sampled position.

    Args:
        spec: the model.
        gpu: the devices.
        deployment: how they are used.
        profile: measured figures to predict with; without one, the device's own.

    Raises:
        ConfigError: the paper has no sweeps of this model on this device; names those that it has.
    """
    sweeps = PAPER_SWEEPS.get(gpu.name)
    if sweeps is None or sweeps.model != spec.name or sweeps.ranks != deployment.num_ranks:
        known = "; ".join(
            f"--model {known.model} --gpu {known.gpu} --ranks {known.ranks} --fraction {known.fraction:g}"
            for known in PAPER_SWEEPS.values()
        )
        raise ConfigError(
            f"the paper has no sweeps of {spec.name} on {deployment.num_ranks} {gpu.name}: {known}"
        )
    theta = profile or analytical_profile(gpu, dtype=deployment.precision.name)
    pair = _pair(spec, theta, deployment, sweeps)
    return PaperComparison(
        sweeps=sweeps,
        chunk_tokens=deployment.chunk_tokens,
        points=tuple(_compared(pair, point) for point in sweeps.points),
    )


def _compared(pair: PricedPair, point: MeasuredPoint) -> ComparedPoint:
    rates: dict[Layout, float] = {}
    for layout in pair.pools:
        time = batch_time(
            pair, layout, batch=point.batch, input_tokens=point.input_tokens, output_tokens=OUTPUT_TOKENS
        )
        if time is not None:
            rates[layout] = point.batch * (point.input_tokens + OUTPUT_TOKENS) / time.total_s
    best_first = sorted(rates, key=lambda layout: -rates[layout])
    return ComparedPoint(measured=point, tokens_per_s={layout: rates[layout] for layout in best_first})


def _pair(
    spec: ModelSpec, profile: HardwareProfile, deployment: Deployment, sweeps: PaperSweeps
) -> PricedPair:
    prefill = CostModel(
        spec=spec,
        precision=deployment.precision,
        profile=profile,
        num_ranks=deployment.num_ranks,
    )
    account = memory_account(spec, deployment)
    behind = replace(deployment, num_ranks=sweeps.decode_ranks, chunk_tokens=_DECODE_ROWS)
    page = deployment.page_size
    return PricedPair(
        prefill=prefill,
        decode=replace(prefill, num_ranks=sweeps.decode_ranks),
        pools={
            layout: LayoutPool(feasible=True, total_tokens=account.pool_pages(layout) * page)
            for layout in STANDARD_LAYOUTS
            if account.can_run(layout)
        },
        decode_layout=Layout.DP,
        decode_tokens=memory_account(spec, behind).pool_pages(Layout.DP) * page,
        chunk_tokens=deployment.chunk_tokens,
        page_size=page,
        handoff_bps=HANDOFF_BPS,
    )
