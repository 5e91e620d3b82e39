"""Predicted against measured step times of a group, and the alarm when they part.

Each time that the policy looks at the group, the step after it is predicted; if it is then planned as it was
seen (nothing came, went or moved), its measured time is compared. So prediction costs nothing between looks.
"""

import logging
from collections.abc import Callable, Mapping

from splash_core.cost.model import CostModel
from splash_core.ids import StepId
from splash_core.layout.layout import Layout
from splash_core.policy.decision import Cause, Decision, DecisionVerdict
from splash_core.policy.drift import (
    DriftChange,
    DriftRules,
    DriftState,
    Forecast,
    LayoutDrift,
    forecast,
    observe,
)
from splash_core.policy.snapshot import Phase, Snapshot
from splash_core.scheduling.step import StepPlan

_log = logging.getLogger("splash.leader")


class Forecasts:
    """Of one group. `tell` gets the record of each alarm."""

    def __init__(
        self, model: CostModel, tell: Callable[[Decision], None], *, rules: DriftRules | None = None
    ) -> None:
        self._model = model
        self._tell = tell
        self._rules = rules or DriftRules()
        self._state = DriftState()
        self._next: tuple[Forecast, Snapshot] | None = None
        self._awaited: dict[StepId, tuple[Forecast, Snapshot]] = {}

    @property
    def layouts(self) -> Mapping[Layout, LayoutDrift]:
        """What has been seen of each layout."""
        return self._state.layouts

    def drifting(self, layout: Layout) -> bool:
        """True while a layout's alarm stands."""
        return layout in self._state.drifting

    def seen(self, snapshot: Snapshot) -> None:
        """The policy has looked: the next step is expected to be as predicted from this."""
        expected = forecast(snapshot, self._model)
        self._next = None if expected is None else (expected, snapshot)

    def planned(self, plan: StepPlan) -> None:
        """The next step is planned."""
        expected, self._next = self._next, None
        if expected is None or plan.manifest is not None or plan.precopy is not None:
            return
        shape = (plan.layout, len(plan.sequences), plan.num_rows)
        if shape == (expected[0].layout, expected[0].sequences, expected[0].rows):
            self._awaited[plan.step] = expected

    def stepped(self, plan: StepPlan, measured_s: float) -> None:
        """A step has ended; `measured_s` is its time on the slowest rank."""
        expected = self._awaited.pop(plan.step, None)
        if expected is None:
            return
        self._state, change = observe(
            self._state,
            layout=plan.layout,
            predicted_s=expected[0].step_s,
            measured_s=measured_s,
            calibrated=self._model.profile.provenance.source == "measured",
            rules=self._rules,
        )
        if change is not None:
            words = change.words(self._rules)
            (_log.warning if change.drifting else _log.info)("%s", words)
            self._tell(_record(change, words, expected[0], measured_s, expected[1]))


def _record(
    change: DriftChange, words: str, expected: Forecast, measured_s: float, snapshot: Snapshot
) -> Decision:
    return Decision(
        time_s=snapshot.time_s,
        phase=Phase(snapshot.phase),
        group=snapshot.group,
        verdict=DecisionVerdict.HOLD,
        cause=Cause.DRIFT if change.drifting else Cause.NO_DRIFT,
        reason=words,
        layout_from=change.layout,
        layout_to=change.layout,
        predicted_ms={change.layout: expected.step_s * 1e3},
        refused={},
        cost_ms=0.0,
        inputs={
            "measured_ms": measured_s * 1e3,
            "ratio": change.ratio,
            "reference": change.reference,
        },
    )
