"""Who chooses a group's layout at its step boundaries: the policy, nobody, or an oracle."""

import math
from collections.abc import Callable
from typing import Protocol

from splash_core.cost.model import CostModel
from splash_core.layout.layout import Layout
from splash_core.policy.config import GroupPolicy
from splash_core.policy.decision import Decision
from splash_core.policy.outlook import outlooks
from splash_core.policy.snapshot import Snapshot
from splash_core.policy.state import PolicyState
from splash_core.policy.switching import decide, refused
from splash_core.simulate.policies import Said
from splash_core.switch.manifest import SwitchMode

Look = Callable[[], Snapshot]
Move = Callable[[Layout, SwitchMode], str]
"""Switches, or begins to copy ahead, or says why not."""
Limit = Callable[[int | None], None]
"""Bounds the rows of the next steps; None: no more than memory does."""


class Pilot(Protocol):
    """Looks at a group between two steps."""

    @property
    def free_switches(self) -> bool:
        """True when its switches take no time."""
        ...

    @property
    def next_look_s(self) -> float:
        """When it wants to look next; until then steps need not stop."""
        ...

    def at_boundary(self, now: float, look: Look, move: Move, limit: Limit) -> None:
        """Look, if it is time, and perhaps move."""
        ...


class Fixed:
    """Stays."""

    free_switches = False
    next_look_s = math.inf

    def at_boundary(self, now: float, look: Look, move: Move, limit: Limit) -> None:
        """Nothing to decide."""


class Policy:
    """What the leader does (`leader.steering`): the policy at its interval, its switches carried out."""

    free_switches = False

    def __init__(self, model: CostModel, said: Said) -> None:
        self.decisions: list[Decision] = []
        """Switches, and wishes for one that were refused."""
        self.next_look_s = 0.0
        self._model = model
        self._said = said
        self._now = said(0.0)
        self._state = PolicyState()

    def at_boundary(self, now: float, look: Look, move: Move, limit: Limit) -> None:
        """Decide, if the interval is over."""
        if now < self.next_look_s:
            return
        said = self._follow(now, limit)
        self.next_look_s = now + said.config.interval_s
        if not said.enabled and said.pin is None:
            return
        seen = look()
        if seen.switch_pending and said.pin is seen.layout:
            move(seen.layout, SwitchMode.PRECOPIED)  # calls off what is still being copied ahead
        decision, self._state = decide(seen, self._model, said.config, self._state)
        if decision.steps is not None and said.enabled and not said.config.shadow:
            limit(decision.steps.chunk_tokens)
        if decision.switches:
            why_not = move(decision.layout_to, decision.executor.mode)
            self.decisions.append(refused(decision, why_not) if why_not else decision)

    def _follow(self, now: float, limit: Limit) -> GroupPolicy:
        """What the policy says now; as in a leader, a streak under other preferences says nothing."""
        before, self._now = self._now, self._said(now)
        if before.config.preferences != self._now.config.preferences:
            self._state = self._state.with_candidate(None)
        if before != self._now:
            limit(None)
        if self._now.pin is not self._state.pinned:
            self._state = self._state.with_pin(self._now.pin)
        return self._now


class Oracle:
    """Knows how long every answer will be and switches for nothing: whatever is best now, at every interval.

    No margin, dwell, budget, pin or cost holds it. It compares as the policy does, bounds included, so it is
    greedy: it does not know who will come.
    """

    free_switches = True

    def __init__(self, model: CostModel, said: Said) -> None:
        self.next_look_s = 0.0
        self._model = model
        self._said = said

    def at_boundary(self, now: float, look: Look, move: Move, limit: Limit) -> None:
        """Go where the objective is smallest."""
        del limit  # steps take what they may
        if now < self.next_look_s:
            return
        config = self._said(now).config
        self.next_look_s = now + config.interval_s
        snapshot = look()
        if snapshot.is_idle:
            return
        looks = outlooks(
            snapshot,
            self._model,
            itl_bound_s=config.itl_bound_s,
            ttft_bound_s=config.ttft_bound_s,
            horizon_steps=config.horizon_steps,
        )
        enterable = [
            look
            for layout, look in looks.items()
            if layout in config.allowed and (look.present or not look.refusal)
        ]
        best = min(enterable, key=lambda look: (look.objective_s, not look.present), default=None)
        if best is not None and not best.present:
            move(best.layout, SwitchMode.OVERLAPPED)
