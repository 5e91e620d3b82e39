"""The record of one decision: what was seen, predicted and concluded. Kept, exported and shown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from splash_core.layout.forms import AttentionForm, CpStorage, KernelLibrary
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Phase
from splash_core.switch.manifest import SwitchMode


class DecisionVerdict(StrEnum):
    """What a decision concludes."""

    SWITCH = "SWITCH"
    HOLD = "HOLD"
    """Staying is right, or waiting is."""
    REJECT = "REJECT"
    """Another layout is wanted and cannot be entered."""


class Cause(StrEnum):
    """The kind of reason, for counting and for collapsing repeated records."""

    LEAD = "lead"
    PINNED = "pinned"
    MANUAL_HOLD = "manual_hold"
    SWITCH_PENDING = "switch_pending"
    MISSING_INPUT = "missing_input"
    STALE_INPUT = "stale_input"
    IDLE = "idle"
    NO_LEAD = "no_lead"
    CONFIRMING = "confirming"
    DWELL = "dwell"
    COST = "cost"
    BUDGET = "budget"
    SHADOW = "shadow"
    NO_ROOM = "no_room"
    INFEASIBLE = "infeasible"
    REFUSED = "refused"
    """The planner refused the manifest, after a SWITCH verdict."""
    DRIFT = "drift"
    """Steps of a layout do not take what is predicted any more: an alarm, beside the decisions."""
    NO_DRIFT = "no_drift"
    """They do again."""


class Executor(StrEnum):
    """How a switch that is wanted is executed."""

    NONE = "none"
    """No switch is wanted."""
    OVERLAPPED = "overlapped"
    PRECOPIED = "precopied"
    WAIT = "wait"
    """Not now: the reason says what for."""

    @property
    def mode(self) -> SwitchMode:
        """What to ask the scheduler for."""
        return SwitchMode.PRECOPIED if self is Executor.PRECOPIED else SwitchMode.OVERLAPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """How the next steps are computed, in the layout that they run in."""

    chunk_tokens: int
    """Rows of a step that computes prompts."""
    form: AttentionForm
    storage: CpStorage
    library: KernelLibrary

    def to_json(self) -> dict[str, Any]:
        """In the shape of `GET /admin/decisions`."""
        return {
            "chunk_tokens": self.chunk_tokens,
            "form": self.form.value,
            "cp_storage": self.storage.value,
            "backend": self.library.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One evaluation of the policy. `layout_to` is the layout preferred, also when it is not entered."""

    time_s: float
    phase: Phase
    group: str
    verdict: DecisionVerdict
    cause: Cause
    reason: str
    layout_from: Layout
    layout_to: Layout
    predicted_ms: Mapping[Layout, float]
    """Step time of every feasible layout."""
    refused: Mapping[Layout, str]
    """Why each other layout is out of the question."""
    cost_ms: float
    """Exposed time and contention charge of a switch to `layout_to`."""
    inputs: Mapping[str, Any]
    executor: Executor = Executor.NONE
    """How the switch to `layout_to` is executed, or that it waits."""
    steps: StepShape | None = None
    """None where the layout of the next steps has no prediction."""

    @property
    def switches(self) -> bool:
        """True when the group should switch to `layout_to`."""
        return self.verdict is DecisionVerdict.SWITCH

    def to_json(self) -> dict[str, Any]:
        """The record in the shape of `GET /admin/decisions`."""
        return {
            "time": self.time_s,
            "phase": self.phase.value,
            "group": self.group,
            "verdict": self.verdict.value,
            "cause": self.cause.value,
            "reason": self.reason,
            "from": self.layout_from.value,
            "to": self.layout_to.value,
            "predicted_ms": {layout.value: round(ms, 4) for layout, ms in self.predicted_ms.items()},
            "feasible": {
                **{layout.value: True for layout in self.predicted_ms},
                **{layout.value: False for layout in self.refused},
            },
            "refused": {layout.value: why for layout, why in self.refused.items()},
            "cost_ms": round(self.cost_ms, 4),
            "executor": self.executor.value,
            "steps": None if self.steps is None else self.steps.to_json(),
            "inputs": {name: _plain(value) for name, value in self.inputs.items()},
        }


def _plain(value: Any) -> Any:
    """JSON has no infinity: what is infinite is null."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value)
        return {name: _plain(entry) for name, entry in entries.items()}
    return value
