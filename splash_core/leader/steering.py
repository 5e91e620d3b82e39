"""Who moves a group between layouts: the operator first, then the policy; every decision is recorded.

Everything here happens at step boundaries, called by the leader's loop. Invariant: at most one switch is
wished for at a time, and whoever asked for it gets exactly one answer: done, or refused, with the numbers.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from splash_core.cost.model import CostModel
from splash_core.errors import Blocked, Conflict, SplashError
from splash_core.layout.layout import Layout
from splash_core.leader.forecasts import Forecasts
from splash_core.leader.pace import StepPace
from splash_core.leader.pins import Pins
from splash_core.policy.bundle import EvaluationRecorder
from splash_core.policy.config import GroupPolicy
from splash_core.policy.decision import Decision
from splash_core.policy.in_force import PolicyInForce
from splash_core.policy.log import DecisionLog
from splash_core.policy.snapshot import Snapshot
from splash_core.policy.state import PolicyState
from splash_core.policy.switching import refused
from splash_core.scheduling.events import SwitchDeferred, SwitchedEvent, SwitchRefusedEvent
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.step import StepPlan
from splash_core.switch.manifest import Refusal, SwitchMode

_DEFERRED_LIMIT_S = 30.0
"""A switch that waits this long for pages in use outside is refused with the numbers."""
_CALENDAR_S = 0.25
"""How often calendars are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOutcome:
    """An executed switch."""

    layout_from: Layout
    layout_to: Layout
    epoch: int
    mode: str
    """Empty when nothing moved."""
    exposed_ms: float
    bytes_received: int
    """In the switching step."""
    precopied_bytes: int = 0
    """In the ordinary steps before it."""
    fallback: str = ""
    """Why it was overlapped though it was to be precopied."""


@dataclass(slots=True)
class _SwitchOrder:
    layout: Layout
    mode: SwitchMode
    since: float
    answer: "asyncio.Future[SwitchOutcome]"


@dataclass(slots=True)
class _Offer:
    """A version of the policy that the next boundary takes."""

    policy: PolicyInForce
    answer: "asyncio.Future[None]"


def refusal_text(refusal: Refusal) -> str:
    """A refusal with its numbers, in one line."""
    where = "" if refusal.rank is None else f"; rank {refusal.rank}"
    if refusal.needed_slots is not None:
        where += f" needs {refusal.needed_slots} slots, {refusal.free_slots} are free"
    return f"{refusal.layout_from} → {refusal.layout_to} is refused: {refusal.reason}{where}"


class Steering:
    """Switch requests, pins and the policy of one group."""

    def __init__(
        self,
        scheduler: GroupScheduler,
        *,
        model: CostModel,
        policy: PolicyInForce,
        pace: StepPace,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self.recorder = EvaluationRecorder(model)
        self._policy = policy
        self._pace = pace
        self._clock = clock
        self._state = PolicyState()
        self._pins = Pins()
        self._now: GroupPolicy = policy.at(clock())
        """What the policy says now."""
        self._next_look = 0.0
        self._offer: _Offer | None = None
        self._log = DecisionLog()
        self.forecasts = Forecasts(model, self._log.add)
        self._wish: _SwitchOrder | None = None
        self._ordered: Decision | None = None
        """The policy's switch that is under way."""
        self._next_tick = 0.0

    @property
    def pending(self) -> bool:
        """True while a switch is wished for."""
        return self._wish is not None

    @property
    def pinned(self) -> Layout | None:
        """The layout that an operator holds the group in."""
        return self._state.pinned

    @property
    def watches(self) -> bool:
        """True when an idle group must still look around now and then."""
        return self.pending or self._state.pinned is not None or self._policy.may_pin

    @property
    def policy(self) -> PolicyInForce:
        """The version of the policy in force."""
        return self._policy

    def set_policy(self, policy: PolicyInForce) -> "asyncio.Future[None]":
        """Take a version of the policy at the next boundary; answers when it is in force.

        Raises:
            Conflict: it does not follow the version in force, or one that is on its way.
        """
        policy.check_follows(self._policy if self._offer is None else self._offer.policy)
        if self._offer is not None and not self._offer.answer.done():
            self._offer.answer.set_exception(Conflict(f"superseded by policy version {policy.number}"))
        self._offer = _Offer(policy, asyncio.get_running_loop().create_future())
        return self._offer.answer

    def decisions(self, last: int) -> tuple[Decision, ...]:
        """The newest records, oldest first; all of them for 0."""
        return self._log.last(last or None)

    def set_layout(
        self, layout: Layout, mode: SwitchMode, *, hold_s: float | None
    ) -> "asyncio.Future[SwitchOutcome]":
        """Wish for a layout now, and hold the policy off, its pin too, for `hold_s` seconds (None: its own).
        The present layout calls off a switch that is still copying ahead.

        Raises:
            Blocked: the group is pinned elsewhere by hand, or another switch is under way.
        """
        if (pinned := self._pins.by_hand) not in (None, layout):
            raise Blocked(f"the group is pinned to {pinned}; unpin it first")
        if self._wish is not None and not self._calls_off(layout):
            raise Blocked(f"a switch to {self._wish.layout} is under way; ask for {layout} after it")
        self._refuse(Blocked(f"called off: {layout}, the present layout, was set instead"))
        now = self._clock()
        hold_s = self._now.config.hold_s if hold_s is None else hold_s
        self._pins.put_aside(self._now.pin, layout)
        self._hold(self._pins.held(self._now.pin))
        self._state = self._state.with_manual_switch(now, hold_s=hold_s)
        self._wish = _SwitchOrder(layout, mode, now, asyncio.get_running_loop().create_future())
        return self._wish.answer

    def pin(self, layout: Layout | None) -> None:
        """Hold the group in a layout from the next boundary on; None gives it back to the policy."""
        self._pins.by_hand = layout
        self._hold(self._pins.held(self._now.pin))

    def at_boundary(self, snapshot: Callable[[], Snapshot]) -> None:
        """Take a new version of the policy; pursue a wish, else let the policy look, if it is time."""
        now = self._clock()
        self._follow_policy(now)
        if self._wish is not None:
            self._pursue(self._wish)
            return
        if now < self._next_tick or not (self._now.enabled or self._state.pinned is not None):
            return
        config = self._now.config
        self._next_tick = now + config.interval_s
        seen = snapshot()
        self.forecasts.seen(seen)
        decision, state = self.recorder.decide(seen, config, self._state)
        self._state = state
        if decision.steps is not None and self._now.enabled and not config.shadow:
            self._scheduler.limit_chunk(decision.steps.chunk_tokens)
        if decision.switches:
            outcome = self._scheduler.request_switch(decision.layout_to, decision.executor.mode)
            if isinstance(outcome, Refusal):
                decision = refused(decision, refusal_text(outcome))
            elif isinstance(outcome, SwitchDeferred):
                decision = refused(decision, f"deferred: {refusal_text(outcome.refusal)}")
            else:
                self._ordered = decision
        inputs = {**decision.inputs, "policy_version": self._policy.number, "trying": self._policy.trying}
        self._log.add(replace(decision, inputs=inputs))

    def on_switched(self, event: SwitchedEvent, plan: StepPlan, *, paused_s: float) -> None:
        """A switch was executed with `plan`, before which no step was under way for `paused_s` seconds."""
        self._pace.forget()
        self._ordered = None
        exposed_s = self._pace.exposed_s(plan, paused_s + event.step_s)
        self._answer(event, exposed_s)

    def on_refused(self, event: SwitchRefusedEvent) -> None:
        """The planner refused at the boundary what it had accepted before, or had yet to plan."""
        ordered, self._ordered = self._ordered, None
        if ordered is not None and ordered.layout_to is event.refusal.layout_to:
            self._log.add(refused(ordered, refusal_text(event.refusal)))
        if self._wish is not None and not event.retry:
            self._refuse(Conflict(refusal_text(event.refusal)))

    def fail(self, error: SplashError) -> None:
        """The group has ended."""
        if self._wish is not None:
            self._refuse(error)
        offer, self._offer = self._offer, None
        if offer is not None and not offer.answer.done():
            offer.answer.set_exception(error)

    def _follow_policy(self, now: float) -> None:
        """Swap to the version that was offered, and to what the calendar says; the rest is kept.

        Dwell, budget, hold and a pin by hand outlive it; a streak does where its keys have not changed.
        """
        offer, self._offer = self._offer, None
        if offer is None and now < self._next_look:
            return
        self._next_look = now + _CALENDAR_S
        if offer is not None:
            self._policy = offer.policy
            self._pins.give_back()
            if not offer.answer.done():
                offer.answer.set_result(None)
        before, self._now = self._now, self._policy.at(now)
        if before.config.preferences != self._now.config.preferences:
            self._state = self._state.with_candidate(None)
        if offer is not None or before != self._now:
            self._next_tick = 0.0
            self._scheduler.limit_chunk(None)
        if self._wish is None and now >= (self._state.hold_until_s or now):
            self._pins.give_back()
        self._hold(self._pins.follow(self._now.pin))

    def _hold(self, layout: Layout | None) -> None:
        """Pinned to a layout from now on, or to none."""
        if layout is self._state.pinned:
            return
        if layout is not None and self._calls_off(layout):
            self._refuse(Blocked(f"called off: {layout}, the present layout, was pinned"))
            self._scheduler.request_switch(layout)
        self._state = self._state.with_pin(layout)
        self._next_tick = 0.0

    def _calls_off(self, layout: Layout) -> bool:
        """True when a wish for `layout` ends a switch that is copying ahead."""
        return self._scheduler.copying_ahead and layout is self._scheduler.layout

    def _pursue(self, wish: _SwitchOrder) -> None:
        if wish.answer.done():
            # Whoever asked has gone; what is scheduled already will happen, nothing new is asked for.
            self._wish = None
            return
        try:
            outcome = self._scheduler.request_switch(wish.layout, wish.mode)
        except Conflict as error:
            self._refuse(error)
            return
        if isinstance(outcome, SwitchedEvent):
            self._answer(replace(outcome, mode=wish.mode), 0.0)
        elif isinstance(outcome, Refusal):
            self._refuse(Conflict(refusal_text(outcome)))
        elif isinstance(outcome, SwitchDeferred) and self._clock() - wish.since > _DEFERRED_LIMIT_S:
            self._refuse(Conflict(f"{refusal_text(outcome.refusal)}; waited {_DEFERRED_LIMIT_S:g} s"))

    def _answer(self, event: SwitchedEvent, exposed_s: float) -> None:
        wish = self._wish
        if wish is None or wish.layout is not event.layout_to:
            return
        self._wish = None
        moved = event.layout_from is not event.layout_to
        outcome = SwitchOutcome(
            layout_from=event.layout_from,
            layout_to=event.layout_to,
            epoch=event.epoch,
            mode=event.mode.value if moved else "",
            exposed_ms=exposed_s * 1e3,
            bytes_received=event.bytes_received,
            precopied_bytes=event.precopied_bytes,
            fallback=event.fallback,
        )
        if not wish.answer.done():
            wish.answer.set_result(outcome)

    def _refuse(self, error: SplashError) -> None:
        wish, self._wish = self._wish, None
        self._pins.give_back()
        if wish is not None and not wish.answer.done():
            wish.answer.set_exception(error)
