"""π(x; θ): which layout to run, and whether changing to it is worth its cost (docs/model.md §6).

`decide` is a pure function: snapshot, model, settings and state in; a decision and a new state out.
Invariants: at most one switch of the policy per dwell; a pin wins over everything; a layout that is not
feasible or cannot hold the running histories is never chosen; every decision states the predicted step
time of every feasible layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from splash_core.cost.model import CostModel
from splash_core.cost.switch import SwitchCost, switch_bytes, switch_cost
from splash_core.layout.layout import RULES, Layout
from splash_core.policy.config import PolicyConfig
from splash_core.policy.decision import Cause, Decision, Verdict
from splash_core.policy.outlook import Outlook, outlooks
from splash_core.policy.snapshot import Phase, Snapshot
from splash_core.policy.state import PolicyState
from splash_core.units import format_bytes


@dataclass(frozen=True, slots=True)
class _Finding:
    """A verdict on its way into a record, with the state that follows from it."""

    verdict: Verdict
    cause: Cause
    reason: str
    layout_to: Layout
    state: PolicyState
    extra: Mapping[str, Any]
    cost: SwitchCost | None = None


def decide(
    snapshot: Snapshot, model: CostModel, config: PolicyConfig, state: PolicyState
) -> tuple[Decision, PolicyState]:
    """Choose the layout of a group's next steps.

    The returned state assumes that a SWITCH verdict is carried out; after a refusal use `refused`.

    Args:
        snapshot: load and room of the group.
        model: the cost model of the deployment.
        config: the phase's settings.
        state: what earlier decisions left.
    """
    bound = None if config.itl_bound_ms is None else config.itl_bound_ms / 1e3
    looks = outlooks(snapshot, model, itl_bound_s=bound, horizon_steps=config.horizon_steps)
    finding = _manual(snapshot, model, config, state, looks) or _blocked(snapshot, config, state)
    if finding is None:
        finding = _weigh(snapshot, model, config, state, looks)
    return _record(snapshot, model, looks, finding), finding.state


def refused(decision: Decision, reason: str) -> Decision:
    """The record of a SWITCH verdict that the planner refused; the dwell keeps it from being repeated."""
    return replace(decision, verdict=Verdict.REJECT, cause=Cause.REFUSED, reason=reason)


def _manual(
    snapshot: Snapshot,
    model: CostModel,
    config: PolicyConfig,
    state: PolicyState,
    looks: Mapping[Layout, Outlook],
) -> _Finding | None:
    """What the operator has asked for, which goes before the policy."""
    now, pinned = snapshot.time_s, state.pinned
    if pinned is not None:
        if pinned is snapshot.layout:
            return _hold(Cause.PINNED, f"pinned to {pinned}", pinned, state)
        if snapshot.switch_pending:
            return _hold(Cause.SWITCH_PENDING, "a switch is under way", snapshot.layout, state)
        tried = state.pin_tried_s
        if tried is not None and now - tried < config.dwell_s:
            wait = config.dwell_s - (now - tried)
            return _hold(Cause.PINNED, f"pinned to {pinned}; next attempt in {wait:.1f} s", pinned, state)
        why = _unreachable(snapshot, looks, pinned)
        if why:
            return _Finding(Verdict.REJECT, Cause.INFEASIBLE, f"pinned to {pinned}: {why}", pinned, state, {})
        cost = _cost(snapshot, model, looks[pinned])
        after = replace(state.with_switch(now, exposed_s=0.0), pin_tried_s=now)
        return _Finding(Verdict.SWITCH, Cause.PINNED, f"pinned to {pinned}", pinned, after, {}, cost)
    if snapshot.switch_pending:
        return _hold(Cause.SWITCH_PENDING, "a switch is under way", snapshot.layout, state)
    if state.hold_until_s is not None and now < state.hold_until_s:
        left = state.hold_until_s - now
        reason = f"set by hand; the policy resumes in {left:.1f} s"
        return _hold(Cause.MANUAL_HOLD, reason, snapshot.layout, state)
    return None


def _blocked(snapshot: Snapshot, config: PolicyConfig, state: PolicyState) -> _Finding | None:
    """Why nothing can be concluded: inputs missing or too old, or nothing to do."""
    reset = state.with_candidate(None)
    if not snapshot.pools:
        return _hold(Cause.MISSING_INPUT, "missing input: pools", snapshot.layout, reset)
    for name, age in snapshot.ages.by_name().items():
        if age is None:
            return _hold(Cause.MISSING_INPUT, f"missing input: {name}", snapshot.layout, reset)
        if age > config.max_age_s:
            reason = f"stale input: {name} is {age:.1f} s old, the limit is {config.max_age_s:g} s"
            return _hold(Cause.STALE_INPUT, reason, snapshot.layout, reset)
    if snapshot.is_idle:
        return _hold(Cause.IDLE, "nothing runs or waits", snapshot.layout, reset)
    return None


def _weigh(
    snapshot: Snapshot,
    model: CostModel,
    config: PolicyConfig,
    state: PolicyState,
    looks: Mapping[Layout, Outlook],
) -> _Finding:
    """Compare the present layout with the best other one."""
    here = looks.get(snapshot.layout)
    allowed = [looks[layout] for layout in config.allowed if layout in looks]
    enterable = [look for look in allowed if look.present or not look.refusal]
    best = _best(enterable)
    own = here.objective_s if here is not None and snapshot.layout in config.allowed else float("inf")
    if best is None or best.present or _lead(own, best) <= config.margin:
        barred = _best([look for look in allowed if look.refusal and not look.present])
        if barred is not None and _lead(own, barred) > config.margin:
            lead = {"lead": _lead(own, barred)}
            return _Finding(
                Verdict.REJECT, Cause.NO_ROOM, barred.refusal, barred.layout, state.with_candidate(None), lead
            )
        return _no_lead(snapshot, config, state, own, best)
    return _worth(snapshot, model, config, state.with_candidate(best.layout), own, best)


def _worth(
    snapshot: Snapshot,
    model: CostModel,
    config: PolicyConfig,
    state: PolicyState,
    own: float,
    best: Outlook,
) -> _Finding:
    """`best` leads by the margin: is this the time, and does the gain pay for the switch?"""
    now, lead = snapshot.time_s, _lead(own, best)
    cost = _cost(snapshot, model, best)
    gain = _gain(snapshot, config, own, best)
    extra = {"lead": lead, "gain_ms": gain * 1e3, "contention_ms": cost.contention_s * 1e3}
    summary = f"{best.layout} leads {snapshot.layout} by {lead:.1%}"

    def hold(cause: Cause, reason: str) -> _Finding:
        return _Finding(Verdict.HOLD, cause, f"{summary}; {reason}", best.layout, state, extra, cost)

    if state.streak < config.confirm:
        return hold(Cause.CONFIRMING, f"seen {state.streak} of {config.confirm} times")
    wait = state.dwell_left(now, config.dwell_s)
    if wait > 0:
        return hold(Cause.DWELL, f"{wait:.1f} s of the dwell are left")
    if gain <= cost.total_s:
        price = f"{cost.total_s * 1e3:.1f} ms{_handoffs(snapshot, cost)}"
        return hold(Cause.COST, f"gain {gain * 1e3:.1f} ms does not pay for {price}")
    spent = state.spent_in_minute(now)
    if (spent + cost.exposed_s) * 1e3 > config.exposed_ms_per_minute:
        return hold(
            Cause.BUDGET,
            f"{cost.exposed_s * 1e3:.1f} ms exposed after {spent * 1e3:.1f} ms in this minute exceed "
            f"the budget of {config.exposed_ms_per_minute:g} ms",
        )
    after = state.with_switch(now, exposed_s=cost.exposed_s)
    if config.shadow:
        finding = hold(Cause.SHADOW, "shadow mode: would switch")
        return replace(finding, state=after)
    reason = f"{summary}; gain {gain * 1e3:.1f} ms over {best.remaining_steps} steps"
    return _Finding(Verdict.SWITCH, Cause.LEAD, reason, best.layout, after, extra, cost)


def _best(looks: list[Outlook]) -> Outlook | None:
    """The smallest objective; the present layout wins a tie, then the order given."""
    return min(looks, key=lambda look: (look.objective_s, not look.present), default=None)


def _lead(own: float, best: Outlook) -> float:
    if best.objective_s == 0 or own == best.objective_s:
        return 0.0
    return own / best.objective_s - 1


def _gain(snapshot: Snapshot, config: PolicyConfig, own: float, best: Outlook) -> float:
    """Seconds won over the steps that the advantage is expected to last, within the horizon."""
    steps = min(best.remaining_steps, config.horizon_steps)
    if snapshot.phase is Phase.PREFILL:
        return (own - best.objective_s) * steps / best.remaining_steps
    return (own - best.objective_s) * best.admitted * steps


def _cost(snapshot: Snapshot, model: CostModel, look: Outlook) -> SwitchCost:
    owners = [0] * snapshot.num_ranks
    for running in snapshot.running:
        owners[running.owner % snapshot.num_ranks] += running.context_tokens
    moved = switch_bytes(
        model.spec,
        model.precision,
        RULES[snapshot.layout],
        RULES[look.layout],
        owner_tokens=owners,
    )
    return switch_cost(
        model.profile,
        moved,
        layers=model.spec.num_mla_layers,
        step_s=look.prediction.step_s,
        pending_bytes=snapshot.pending_handoff_bytes,
    )


def _handoffs(snapshot: Snapshot, cost: SwitchCost) -> str:
    """What handoffs under way add to a price, in words; empty where they add nothing."""
    if not cost.delayed_s:
        return ""
    size = format_bytes(snapshot.pending_handoff_bytes)
    return f", {cost.delayed_s * 1e3:.1f} ms of it for {size} of handoffs under way"


def _unreachable(snapshot: Snapshot, looks: Mapping[Layout, Outlook], layout: Layout) -> str:
    """Why `layout` can never be entered, or an empty text; whether it can be now, the planner says."""
    if layout in looks:
        return ""
    pool = snapshot.pools.get(layout)
    return pool.reason if pool is not None and pool.reason else f"{layout} is not feasible on this group"


def _hold(cause: Cause, reason: str, layout: Layout, state: PolicyState) -> _Finding:
    return _Finding(Verdict.HOLD, cause, reason, layout, state, {})


def _no_lead(
    snapshot: Snapshot, config: PolicyConfig, state: PolicyState, own: float, best: Outlook | None
) -> _Finding:
    if best is None or best.present:
        reason = f"{snapshot.layout} is the best that fits"
    else:
        lead = _lead(own, best)
        reason = f"{best.layout} leads by {lead:.1%}, within the margin of {config.margin:.1%}"
    return _hold(Cause.NO_LEAD, reason, snapshot.layout, state.with_candidate(None))


def _record(
    snapshot: Snapshot, model: CostModel, looks: Mapping[Layout, Outlook], finding: _Finding
) -> Decision:
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
        inputs={
            "running": len(snapshot.running),
            "waiting": len(snapshot.waiting),
            "rows": sum(running.step_rows for running in snapshot.running),
            "context_tokens": sum(contexts),
            "longest_context": max(contexts, default=0),
            "owner_tokens": list(snapshot.owner_tokens),
            "pending_handoff_bytes": snapshot.pending_handoff_bytes,
            "handoff_delay_ms": 0.0 if finding.cost is None else finding.cost.delayed_s * 1e3,
            "measured_ms": None if measured is None else measured * 1e3,
            "age_s": snapshot.ages.by_name(),
            "admitted": {layout.value: look.admitted for layout, look in looks.items()},
            "waves": {layout.value: look.waves for layout, look in looks.items()},
            "no_room": {layout.value: look.refusal for layout, look in looks.items() if look.refusal},
            "profile": f"{model.profile.name} ({model.profile.provenance.source})",
            **finding.extra,
        },
    )
