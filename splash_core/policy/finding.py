"""A verdict on its way into a record, and the record that it becomes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from splash_core.cost.measured_on import described
from splash_core.cost.model import CostModel
from splash_core.cost.step_choice import StepChoice, choose_step
from splash_core.cost.switch import SwitchCost
from splash_core.layout.layout import RULES, Layout
from splash_core.policy.decision import Cause, Decision, DecisionVerdict, Executor, StepShape
from splash_core.policy.executor import Way
from splash_core.policy.outlook import Outlook
from splash_core.policy.snapshot import Snapshot
from splash_core.policy.state import PolicyState


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """A verdict, with the state that follows from it."""

    verdict: DecisionVerdict
    cause: Cause
    reason: str
    layout_to: Layout
    state: PolicyState
    extra: Mapping[str, Any]
    way: Way | None = None
    """How the switch is executed, or would be."""
    executor: Executor = Executor.NONE

    @property
    def cost(self) -> SwitchCost | None:
        """Of the switch."""
        return None if self.way is None else self.way.cost


def record(
    snapshot: Snapshot, model: CostModel, looks: Mapping[Layout, Outlook], finding: PolicyFinding
) -> Decision:
    """The record of a finding: what was seen and predicted, beside what was concluded."""
    contexts = [running.context_tokens for running in snapshot.running]
    measured = snapshot.measured_step_s
    return Decision(
        time_s=snapshot.time_s,
        phase=snapshot.phase,
        group=snapshot.group,
        verdict=finding.verdict,
        cause=finding.cause,
        reason=finding.reason,
        layout_from=snapshot.layout,
        layout_to=finding.layout_to,
        predicted_ms={layout: look.step_ms for layout, look in looks.items()},
        refused={
            layout: pool.reason or "not feasible"
            for layout, pool in snapshot.pools.items()
            if not pool.feasible
        },
        cost_ms=0.0 if finding.cost is None else finding.cost.total_s * 1e3,
        executor=finding.executor,
        steps=_steps(snapshot, model, looks, finding),
        inputs={
            "running": len(snapshot.running),
            "waiting": len(snapshot.waiting),
            "rows": sum(running.step_rows for running in snapshot.running),
            "context_tokens": sum(contexts),
            "longest_context": max(contexts, default=0),
            "owner_tokens": list(snapshot.owner_tokens),
            "pending_handoff_bytes": snapshot.pending_handoff_bytes,
            "recorded_rows": snapshot.recorded_rows,
            "step_kinds": {layout.value: look.prediction.kind.value for layout, look in looks.items()},
            "handoff_delay_ms": 0.0 if finding.cost is None else finding.cost.delayed_s * 1e3,
            "measured_ms": None if measured is None else measured * 1e3,
            "age_s": snapshot.ages.by_name(),
            "admitted": {layout.value: look.admitted for layout, look in looks.items()},
            "waves": {layout.value: look.waves for layout, look in looks.items()},
            "no_room": {layout.value: look.refusal for layout, look in looks.items() if look.refusal},
            "profile": described(model.profile, model.spec),
            **finding.extra,
        },
    )


def _steps(
    snapshot: Snapshot, model: CostModel, looks: Mapping[Layout, Outlook], finding: PolicyFinding
) -> StepShape | None:
    """How the steps that follow are computed, chosen as the scheduler chooses it for each of them."""
    layout = finding.layout_to if finding.verdict is DecisionVerdict.SWITCH else snapshot.layout
    look = looks.get(layout)
    if look is None:
        return None
    rows = snapshot.next_rows()
    # Of prompts that only wait, the first steps are predicted.
    waits = not rows and bool(snapshot.waiting)
    predicted = StepChoice(look.prediction.form, look.prediction.storage)
    choice = predicted if waits else choose_step(model, RULES[layout], rows)
    return StepShape(
        chunk_tokens=look.chunk_tokens, form=choice.form, storage=choice.storage, library=model.library
    )
