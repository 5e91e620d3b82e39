"""Do steps take as long as predicted? Ratios per layout, and an alarm when their median leaves a band.

A calibrated profile promises times, so its ratios should lie around 1. An analytical one only ranks layouts:
there the first steps set the reference, and what alarms is a layout that departs from it, because then the
order of layouts is wrong, or a group that has become slower. Invariant: `observe` is a pure function; one
alarm when a layout leaves the band, one when it is back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from splash_core.cost.load import Load
from splash_core.cost.model import CostModel
from splash_core.cost.step_kind import StepKind, decode_kind
from splash_core.layout.layout import RULES, Layout
from splash_core.policy.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRules:
    """When the alarm sounds."""

    window: int = 64
    """Steps of a layout that count, the newest ones."""
    least: int = 16
    """Steps before anything is concluded."""
    band: float = 1.5
    """The median ratio may be so many times the reference, or that part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutDrift:
    """What has been seen of one layout."""

    steps: int = 0
    predicted_s: float = 0.0
    """Sum over its steps."""
    measured_s: float = 0.0
    ratios: tuple[float, ...] = ()
    """Measured over predicted, of the newest steps."""

    @property
    def ratio(self) -> float:
        """Median of the newest ratios; 0 before the first."""
        return median(self.ratios) if self.ratios else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftState:
    """What a detector remembers."""

    layouts: Mapping[Layout, LayoutDrift] = field(default_factory=dict[Layout, LayoutDrift])
    first: tuple[float, ...] = ()
    """The first ratios, of any layout, where they set the reference."""
    drifting: frozenset[Layout] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftChange:
    """A layout has left the band, or is back in it."""

    layout: Layout
    ratio: float
    reference: float
    drifting: bool
    calibrated: bool
    """Whether the profile was measured here."""

    def words(self, rules: DriftRules) -> str:
        """In one line, with who must act."""
        times = (
            f"{self.layout}: steps take {self.ratio:.2f} × the prediction, expected {self.reference:.2f} ×"
        )
        if not self.drifting:
            return f"{times}; back within a factor of {rules.band:g}"
        remedy = (
            "calibrate this deployment again"
            if self.calibrated
            else "the group's pace has changed, or its profile, which nobody has measured, ranks layouts "
            "wrongly; look for the cause, or measure a profile with `splash calibrate`"
        )
        return f"{times}; out by more than a factor of {rules.band:g}: {remedy}"


def observe(
    state: DriftState,
    *,
    layout: Layout,
    predicted_s: float,
    measured_s: float,
    calibrated: bool,
    rules: DriftRules = DriftRules(),
) -> tuple[DriftState, DriftChange | None]:
    """Take one step into account; times that are not positive say nothing.

    Args:
        state: what has been seen so far.
        layout: in which the step ran.
        predicted_s: by the model, seconds.
        measured_s: on the slowest rank, seconds.
        calibrated: whether the model's profile was measured on this deployment.
        rules: of the alarm.
    """
    if predicted_s <= 0 or measured_s <= 0:
        return state, None
    ratio, before = measured_s / predicted_s, state.layouts.get(layout, LayoutDrift())
    seen = LayoutDrift(
        steps=before.steps + 1,
        predicted_s=before.predicted_s + predicted_s,
        measured_s=before.measured_s + measured_s,
        ratios=(*before.ratios, ratio)[-rules.window :],
    )
    first = state.first if calibrated or len(state.first) >= rules.least else (*state.first, ratio)
    after = replace(state, layouts={**state.layouts, layout: seen}, first=first)
    if len(seen.ratios) < rules.least or (not calibrated and len(first) < rules.least):
        return after, None
    reference = 1.0 if calibrated else median(first)
    drifting = not 1 / rules.band <= seen.ratio / reference <= rules.band
    if drifting is (layout in state.drifting):
        return after, None
    layouts = state.drifting | {layout} if drifting else state.drifting - {layout}
    change = DriftChange(
        layout=layout, ratio=seen.ratio, reference=reference, drifting=drifting, calibrated=calibrated
    )
    return replace(after, drifting=layouts), change


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a snapshot says of the next step, if nothing comes or goes before it."""

    layout: Layout
    sequences: int
    rows: int
    step_s: float


def forecast(snapshot: Snapshot, model: CostModel) -> Forecast | None:
    """The next step of the sequences that run; None when none of them has a row in it."""
    items = snapshot.next_rows()
    if not items:
        return None
    load, rule = Load.of(items, num_ranks=snapshot.num_ranks, top_k=model.top_k), RULES[snapshot.layout]
    kind = StepKind.PROMPTS
    if snapshot.decodes:
        kind = decode_kind(rule, load, recorded_rows=snapshot.recorded_rows)
    return Forecast(
        layout=snapshot.layout,
        sequences=len(items),
        rows=sum(item.rows for item in items),
        step_s=model.predict(rule, load, kind=kind).step_s,
    )
