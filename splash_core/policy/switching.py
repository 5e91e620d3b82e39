"""π(x; θ): which layout to run, and whether changing to it is worth its cost (docs/model.md §6).

`decide` is a pure function: snapshot, model, settings and state in; a decision and a new state out.
Invariants: at most one switch of the policy per dwell; a pin wins over everything; a layout that is not
feasible or cannot hold the running histories is never chosen; every decision states the predicted step
time of every feasible layout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from splash_core.cost.model import CostModel
from splash_core.cost.switch import SwitchCost
from splash_core.layout.layout import Layout
from splash_core.policy.config import PolicyConfig
from splash_core.policy.decision import Cause, Decision, DecisionVerdict, Executor
from splash_core.policy.executor import Way, best_way, ways, ways_json
from splash_core.policy.finding import PolicyFinding, record
from splash_core.policy.outlook import Outlook, outlooks
from splash_core.policy.snapshot import Phase, Snapshot
from splash_core.policy.state import PolicyState
from splash_core.units import format_bytes


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
    looks = outlooks(
        snapshot,
        model,
        itl_bound_s=config.itl_bound_s,
        ttft_bound_s=config.ttft_bound_s,
        horizon_steps=config.horizon_steps,
    )
    finding = _manual(snapshot, model, config, state, looks) or _blocked(snapshot, config, state)
    if finding is None:
        finding = _weigh(snapshot, model, config, state, looks)
    return record(snapshot, model, looks, finding), finding.state


def refused(decision: Decision, reason: str) -> Decision:
    """The record of a SWITCH verdict that the planner refused; the dwell keeps it from being repeated."""
    return replace(decision, verdict=DecisionVerdict.REJECT, cause=Cause.REFUSED, reason=reason)


def _manual(
    snapshot: Snapshot,
    model: CostModel,
    config: PolicyConfig,
    state: PolicyState,
    looks: Mapping[Layout, Outlook],
) -> PolicyFinding | None:
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
            return PolicyFinding(
                DecisionVerdict.REJECT, Cause.INFEASIBLE, f"pinned to {pinned}: {why}", pinned, state, {}
            )
        after = replace(state.with_switch(now, exposed_s=0.0), pin_tried_s=now)
        return _pinned(snapshot, model, config, looks, pinned, after)
    if snapshot.switch_pending:
        return _hold(Cause.SWITCH_PENDING, "a switch is under way", snapshot.layout, state)
    if state.hold_until_s is not None and now < state.hold_until_s:
        left = state.hold_until_s - now
        reason = f"set by hand; the policy resumes in {left:.1f} s"
        return _hold(Cause.MANUAL_HOLD, reason, snapshot.layout, state)
    return None


def _blocked(snapshot: Snapshot, config: PolicyConfig, state: PolicyState) -> PolicyFinding | None:
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
) -> PolicyFinding:
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
            return PolicyFinding(
                DecisionVerdict.REJECT,
                Cause.NO_ROOM,
                barred.refusal,
                barred.layout,
                state.with_candidate(None),
                lead,
            )
        return _no_lead(snapshot, config, state, own, best)
    return _worth(snapshot, model, config, state.with_candidate(best.layout), looks, own, best)


def _worth(
    snapshot: Snapshot,
    model: CostModel,
    config: PolicyConfig,
    state: PolicyState,
    looks: Mapping[Layout, Outlook],
    own: float,
    best: Outlook,
) -> PolicyFinding:
    """`best` leads by the margin: is this the time, and does the gain pay for the switch in some way?"""
    now, lead, to = snapshot.time_s, _lead(own, best), best.layout
    offered = _ways(snapshot, model, looks, best, config, own)
    possible = [way for way in offered if not way.refusal]
    paying = [way for way in possible if way.net_s > 0]
    spent = state.spent_in_minute(now)
    budget_s = config.exposed_ms_per_minute / 1e3
    affordable = [way for way in paying if spent + way.cost.exposed_s <= budget_s]
    way = _chosen(snapshot, looks, best, config, affordable or paying or possible)
    extra = {
        "lead": lead,
        "gain_ms": way.gain_s * 1e3,
        "contention_ms": way.cost.contention_s * 1e3,
        "executors": ways_json(offered),
    }
    summary = f"{to} leads {snapshot.layout} by {lead:.1%}"

    def hold(cause: Cause, reason: str) -> PolicyFinding:
        told = f"{summary}; {reason}"
        return PolicyFinding(DecisionVerdict.HOLD, cause, told, to, state, extra, way, Executor.WAIT)

    if state.streak < config.confirm:
        return hold(Cause.CONFIRMING, f"seen {state.streak} of {config.confirm} times")
    wait = state.dwell_left(now, config.dwell_s)
    if wait > 0:
        return hold(Cause.DWELL, f"{wait:.1f} s of the dwell are left")
    if not paying:
        price = f"{way.cost.total_s * 1e3:.1f} ms {way.mode}{_handoffs(snapshot, way.cost)}"
        return hold(Cause.COST, f"gain {way.gain_s * 1e3:.1f} ms does not pay for {price}")
    if not affordable:
        return hold(
            Cause.BUDGET,
            f"{way.cost.exposed_s * 1e3:.1f} ms exposed after {spent * 1e3:.1f} ms in this minute exceed "
            f"the budget of {config.exposed_ms_per_minute:g} ms",
        )
    after = state.with_switch(now, exposed_s=way.cost.exposed_s)
    if config.shadow:
        return replace(hold(Cause.SHADOW, "shadow mode: would switch"), state=after)
    why = f"{summary}; gain {way.gain_s * 1e3:.1f} ms over {best.remaining_steps} steps, {way.mode}"
    return PolicyFinding(DecisionVerdict.SWITCH, Cause.LEAD, why, to, after, extra, way, way.executor)


def _best(looks: list[Outlook]) -> Outlook | None:
    """The smallest objective; the present layout wins a tie, then the order given."""
    return min(looks, key=lambda look: (look.objective_s, not look.present), default=None)


def _lead(own: float, best: Outlook) -> float:
    if best.objective_s == 0 or own == best.objective_s:
        return 0.0
    return own / best.objective_s - 1


def _ways(
    snapshot: Snapshot,
    model: CostModel,
    looks: Mapping[Layout, Outlook],
    look: Outlook,
    config: PolicyConfig,
    own: float,
) -> tuple[Way, ...]:
    """The ways to enter `look.layout`, with what is won over the steps that its advantage should last."""
    prefill = snapshot.phase is Phase.PREFILL
    per_step = 1 / look.remaining_steps if prefill else look.admitted
    return ways(
        snapshot,
        model,
        look,
        here_s=looks.get(snapshot.layout, look).prediction.step_s,
        gain_per_step_s=(own - look.objective_s) * per_step,
        steps=min(look.remaining_steps, config.horizon_steps),
    )


def _chosen(
    snapshot: Snapshot,
    looks: Mapping[Layout, Outlook],
    look: Outlook,
    config: PolicyConfig,
    offered: Sequence[Way],
) -> Way:
    way = best_way(
        offered,
        snapshot.phase,
        here_s=looks.get(snapshot.layout, look).prediction.step_s,
        there_s=look.prediction.step_s,
        itl_bound_s=config.itl_bound_s,
    )
    assert way is not None  # an overlapped switch is always among them
    return way


def _pinned(
    snapshot: Snapshot,
    model: CostModel,
    config: PolicyConfig,
    looks: Mapping[Layout, Outlook],
    pinned: Layout,
    after: PolicyState,
) -> PolicyFinding:
    """A pin asks for no gain, only for the way that disturbs least."""
    offered = _ways(snapshot, model, looks, looks[pinned], config, own=looks[pinned].objective_s)
    possible = [way for way in offered if not way.refusal]
    way = _chosen(snapshot, looks, looks[pinned], config, possible)
    extra, reason = {"executors": ways_json(offered)}, f"pinned to {pinned}"
    return PolicyFinding(
        DecisionVerdict.SWITCH, Cause.PINNED, reason, pinned, after, extra, way, way.executor
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


def _hold(cause: Cause, reason: str, layout: Layout, state: PolicyState) -> PolicyFinding:
    return PolicyFinding(DecisionVerdict.HOLD, cause, reason, layout, state, {})


def _no_lead(
    snapshot: Snapshot, config: PolicyConfig, state: PolicyState, own: float, best: Outlook | None
) -> PolicyFinding:
    if best is None or best.present:
        reason = f"{snapshot.layout} is the best that fits"
    else:
        lead = _lead(own, best)
        reason = f"{best.layout} leads by {lead:.1%}, within the margin of {config.margin:.1%}"
    return _hold(Cause.NO_LEAD, reason, snapshot.layout, state.with_candidate(None))
