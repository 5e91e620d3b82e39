"""How a switch would be executed, and at what price: overlapped, or copied ahead by ordinary steps.

A step that is launched computes its layers beside the moves; before one that is replayed all moves. Which of
the two a step is follows from what the group has recorded (`cost.step_kind`), as in the engine.
Invariant: a way is offered only with its price, or with the reason why it is out of the question; the planner
still has the last word about slots, and falls back to overlapped where second copies do not fit after all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from splash_core.cost.model import CostModel
from splash_core.cost.precopy import left_of_link, precopy_cost, rest_cost
from splash_core.cost.switch import SwitchBytes, SwitchCost, missing_tokens, switch_bytes, switch_cost
from splash_core.layout.layout import RULES, Layout
from splash_core.policy.decision import Executor
from splash_core.policy.outlook import Outlook
from splash_core.policy.snapshot import Phase, Snapshot
from splash_core.switch.manifest import SwitchMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to execute a switch."""

    mode: SwitchMode
    cost: SwitchCost
    gain_s: float
    """Seconds won over the steps that are left once it is done."""
    refusal: str = ""
    """Why it is out of the question; empty when it is not."""

    @property
    def net_s(self) -> float:
        """What is won beyond its price."""
        return self.gain_s - self.cost.total_s

    @property
    def executor(self) -> Executor:
        """As a record names it."""
        return Executor(self.mode.value)

    def to_json(self) -> dict[str, Any]:
        """For the record."""
        if self.refusal:
            return {"refused": self.refusal}
        return {
            "cost_ms": self.cost.total_s * 1e3,
            "exposed_ms": self.cost.exposed_s * 1e3,
            "gain_ms": self.gain_s * 1e3,
            "ahead_steps": self.cost.ahead_steps,
        }


def ways(
    snapshot: Snapshot, model: CostModel, look: Outlook, *, here_s: float, gain_per_step_s: float, steps: int
) -> tuple[Way, ...]:
    """The ways to enter `look.layout`, overlapped first.

    Args:
        snapshot: load and room of the group.
        model: the cost model of the deployment.
        look: the outlook of the layout to enter.
        here_s: predicted time of a step in the present layout.
        gain_per_step_s: seconds that a step in the new layout wins.
        steps: steps that the advantage is expected to last.
    """
    moved = _moved(snapshot, model, look.layout, snapshot.owned_tokens())
    overlapped = switch_cost(
        model.profile,
        moved,
        layers=model.spec.num_mla_layers,
        step_s=look.prediction.step_s,
        mode=look.prediction.kind.mode,
        pending_bytes=_pending(snapshot),
    )
    ahead = _precopied(snapshot, model, look, moved, here_s)
    left = max(steps - ahead.ahead_steps, 0)
    return (
        Way(mode=SwitchMode.OVERLAPPED, cost=overlapped, gain_s=gain_per_step_s * steps),
        Way(
            mode=SwitchMode.PRECOPIED,
            cost=ahead,
            gain_s=gain_per_step_s * left if left else 0.0,
            refusal=_no_headroom(snapshot, look.layout)
            or ("" if ahead.ahead_steps else "nothing to copy ahead"),
        ),
    )


def best_way(
    offered: Sequence[Way], phase: Phase, *, here_s: float, there_s: float, itl_bound_s: float | None
) -> Way | None:
    """The way that wins most; None when none is offered.

    In decode a switching step stalls every request. One that stays within the ITL bound, or without a bound
    is longer by no more than an ordinary step takes, goes before one that does not.
    """

    def stalls(way: Way) -> bool:
        if phase is Phase.PREFILL:
            return False
        if itl_bound_s is not None:
            return there_s + way.cost.stall_s > max(itl_bound_s, here_s)
        return way.cost.stall_s > here_s

    return min(offered, key=lambda way: (stalls(way), -way.net_s), default=None)


def ways_json(offered: Sequence[Way]) -> Mapping[str, Any]:
    """All ways, for the record."""
    return {way.mode.value: way.to_json() for way in offered}


def _moved(snapshot: Snapshot, model: CostModel, layout: Layout, owner_tokens: Sequence[int]) -> SwitchBytes:
    return switch_bytes(
        model.spec,
        model.precision,
        RULES[snapshot.layout],
        RULES[layout],
        owner_tokens=owner_tokens,
    )


def _precopied(
    snapshot: Snapshot, model: CostModel, look: Outlook, moved: SwitchBytes, here_s: float
) -> SwitchCost:
    """With what was written since as the rest: of each request a page that is not full, and a step's rows."""
    fresh = [0] * snapshot.num_ranks
    for running in snapshot.running:
        tokens = min(running.context_tokens, snapshot.page_size + running.step_rows)
        fresh[running.owner % snapshot.num_ranks] += tokens
    written = _moved(snapshot, model, look.layout, fresh)
    layers = model.spec.num_mla_layers
    last = rest_cost(
        model.profile,
        SwitchBytes(weights=0, kv=min(written.kv, moved.kv)),
        layers=layers,
        kind=look.prediction.kind,
        step_s=look.prediction.step_s,
        whole_bytes=snapshot.staging_bytes,
    )
    return precopy_cost(
        model.profile,
        moved,
        last,
        layers=layers,
        ordinary_s=here_s,
        bytes_per_step=left_of_link(
            rate_bps=model.profile.link_bps,
            step_s=here_s,
            pending_bytes=_pending(snapshot),
            most=snapshot.precopy_bytes_per_step,
        ),
    )


def _pending(snapshot: Snapshot) -> int:
    """A rank's share of the group's handoffs under way: each has a link of its own."""
    return -(-snapshot.pending_handoff_bytes // snapshot.num_ranks)


def _no_headroom(snapshot: Snapshot, layout: Layout) -> str:
    """Why both copies do not fit, or an empty text. Pages in slots that weights will fill must move, too."""
    if not snapshot.precopy_bytes_per_step:
        return "this group does not copy ahead"
    here, there = snapshot.pools.get(snapshot.layout), snapshot.pools[layout]
    if here is None:
        return "the present layout's pool is not known"
    borrowed = max(here.total_tokens - there.total_tokens, 0)
    lent = min(max(borrowed - here.free_tokens + there.free_tokens, 0), borrowed)
    second = missing_tokens(RULES[snapshot.layout], RULES[layout], owner_tokens=snapshot.owned_tokens())
    needed, free = lent + second, min(here.free_tokens, there.free_tokens)
    if needed <= free:
        return ""
    return f"second copies need room for {needed:.0f} tokens on a rank, there is room for {free}"
