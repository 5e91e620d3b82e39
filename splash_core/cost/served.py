"""What service adds to a step: the leader, the router and clients on the ranks' own host.

    minimise Σ ((predicted + a + b · tokens) / measured − 1)²   over a, b ≥ 0

A calibration's rig drives ranks alone; in service processes beside them want the same cores, for every step
and for every token that is told. Measured is the time between two tokens of streams that decode together.
Invariant: no load that is predicted afterwards enters, and both are the same for all layouts.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from splash_core.cost.load import Load, Rows
from splash_core.cost.model import CostModel
from splash_core.cost.profile import HardwareProfile
from splash_core.cost.step_kind import StepKind
from splash_core.layout.layout import RULES, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStreams:
    """Streams that decoded together on a running stack."""

    layout: Layout
    streams: int
    context: int
    """Mean tokens that each has cached."""
    seconds: float
    """Between two tokens of a stream."""

    def load(self, num_ranks: int) -> Load:
        """One step of them, owners in turn."""
        rows = (Rows(1, self.context, owner, samples=1) for owner in range(self.streams))
        return Load.of(rows, num_ranks=num_ranks)


def with_service(model: CostModel, served: Sequence[ServedStreams]) -> HardwareProfile:
    """The model's profile with what service adds; as it is where nothing was served."""
    if not served:
        return model.profile
    alone = replace(model, profile=replace(model.profile, served_step_s=0.0, served_token_s=0.0))
    more = [one.seconds - predicted_s(alone, one) for one in served]
    step_s, token_s = _least_squares(served, more)
    profile = replace(model.profile, served_step_s=step_s, served_token_s=token_s)
    errors = residuals(replace(model, profile=profile), served)
    provenance = replace(profile.provenance, residuals={**profile.provenance.residuals, **errors})
    return replace(profile, provenance=provenance)


def predicted_s(model: CostModel, one: ServedStreams) -> float:
    """A step of the streams, on CPUs."""
    return model.predict(RULES[one.layout], one.load(model.num_ranks), kind=StepKind.LAUNCHED).step_s


def residuals(model: CostModel, served: Sequence[ServedStreams]) -> dict[str, float]:
    """Median relative error by layout, as `served/LAYOUT`."""
    errors: dict[str, list[float]] = {}
    for one in served:
        errors.setdefault(f"served/{one.layout}", []).append(abs(predicted_s(model, one) / one.seconds - 1))
    return {name: round(statistics.median(some), 4) for name, some in errors.items()}


def _least_squares(served: Sequence[ServedStreams], more: Sequence[float]) -> tuple[float, float]:
    """a and b, each at least 0; every row weighs as its relative error does."""
    rows = [
        (1 / one.seconds, one.streams / one.seconds, y / one.seconds)
        for one, y in zip(served, more, strict=True)
    ]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    ay, by = (sum(row[i] * row[2] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    if determinant > 1e-9 * aa * bb:
        step, token = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
        if step >= 0 and token >= 0:
            return step, token
    # The least is on an edge: of the two, the one that explains more.
    return max(
        ((max(ay / aa, 0.0), 0.0), (0.0, max(by / bb, 0.0))),
        key=lambda pair: 2 * (pair[0] * ay + pair[1] * by) - pair[0] ** 2 * aa - pair[1] ** 2 * bb,
    )
