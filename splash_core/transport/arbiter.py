"""Who sends next on one link: a state machine without threads or clock; every call says what time it is.

Each flow (one write, say) asks for one chunk at a time and says when that chunk is over. What goes first:

    SWITCH      over HANDOFF over PRECOPY; a handoff past half its deadline counts as SWITCH
    in a class  whoever would be done first if all shared by bytes (`fair`): none is later than by sharing
    too late    a class passed over for longer than its patience gets one chunk before the others
    a switch    under way (collectives that ask nobody) holds handoffs and precopies back, but no longer than
                `pause_s`, which comes back between switches as fast as it was spent; after that they have
                `SWITCH_SHARE` of the budget, one chunk at a time, until it is over

Invariants, for any calls: the chunks of any w seconds are at most `burst_bytes + rate_bps · w`; no more than
`window_bytes` of chunks younger than `STUCK_S` are under way; and what is asked for, affordable and not held
goes at once.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from splash_core.errors import InvariantBroken
from splash_core.transport.classes import TrafficClass
from splash_core.transport.fair import FairEnds
from splash_core.transport.limits import SWITCH_SHARE, LinkLimits

STUCK_S = 1.0
"""A chunk under way for longer waits for its peer, not for the link: it keeps nobody else from sending."""

_EPS_S = 1e-9
"""Moments closer than this are one: sums of floating-point times are not exact."""


@dataclass(slots=True)
class ClassUse:
    """What one class has had of a link since start."""

    num_bytes: int = 0
    chunks: int = 0
    waits: int = 0
    """Chunks that did not go the moment they were asked for."""
    wait_s: float = 0.0
    """Seconds that those waited, added up."""


@dataclass(slots=True, eq=False)
class _Flow:
    """One flow: at most one chunk wanted and one or more under way."""

    traffic: TrafficClass
    order: int
    promoted_at: float
    announced: int = 0
    """Bytes that it has said it will send, and that have no place yet."""
    placed: int = 0
    """Bytes to be sent that `tag` is the end of."""
    tag: float = 0.0
    """When it would be done if its level shared by bytes."""
    promoted: bool = False
    wanted: int = 0
    since: float = 0.0
    flying: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """When each chunk under way was granted, and its bytes."""

    @property
    def may_be_promoted(self) -> bool:
        return self.traffic is TrafficClass.HANDOFF and not self.promoted

    @property
    def level(self) -> TrafficClass:
        return TrafficClass.SWITCH if self.promoted else self.traffic


class LinkArbiter:
    """See the module. Flows are numbers that `join` gives out."""

    def __init__(self, limits: LinkLimits, *, now: float = 0.0) -> None:
        self.limits = limits
        self.use = {traffic: ClassUse() for traffic in TrafficClass}
        """So far, by class: chunks granted, and what `charge` was told."""
        self._flows: dict[int, _Flow] = {}
        self._joined = 0
        self._fair = {level: FairEnds() for level in TrafficClass}
        self._served = dict.fromkeys(TrafficClass, now)
        """When each class last got a chunk, or began to want one."""
        self._now = now
        self._level = limits.burst_bytes
        self._credit_s = limits.pause_s
        self._switching = 0
        self._near: set[str] = set()

    # ------------------------------------------------------------------------------ flows

    def join(
        self, traffic: TrafficClass, *, now: float, deadline_s: float = math.inf, num_bytes: int = 0
    ) -> int:
        """A new flow, which has to be over `deadline_s` from now.

        Args:
            traffic: its class.
            now: the time.
            deadline_s: from now; past half of it a handoff is promoted.
            num_bytes: what it will send in all; 0: unknown, so each chunk is placed by itself.
        """
        self._advance(now)
        self._joined += 1
        self._flows[self._joined] = _Flow(
            traffic, self._joined, promoted_at=now + deadline_s / 2, announced=num_bytes
        )
        return self._joined

    def want(self, flow: int, num_bytes: int, *, now: float) -> None:
        """The flow's next chunk stands ready; of no effect while one does already.

        Raises:
            InvariantBroken: it is larger than a chunk may be.
        """
        if not 0 < num_bytes <= self.limits.chunk_bytes:
            raise InvariantBroken(
                f"a chunk of {num_bytes} bytes; the link takes 1 to {self.limits.chunk_bytes}"
            )
        asked = self._flows[flow]
        if asked.wanted:
            return
        self._advance(now)
        if not self._wants(asked.traffic):
            self._served[asked.traffic] = now
        asked.wanted, asked.since = num_bytes, now
        if asked.placed < num_bytes:
            more = max(asked.announced, num_bytes - asked.placed)
            asked.announced, asked.placed = 0, asked.placed + more
            asked.tag = self._fair[asked.level].enter(asked.order, more, after=asked.tag)

    def take(self, *, now: float) -> int | None:
        """The flow whose chunk goes now, if any; it is under way until `sent`."""
        self._advance(now)
        chosen = self._choose()
        if chosen is None or not self._has_room(chosen.wanted) or not self._affords(chosen.wanted):
            return None
        waited = now - chosen.since
        use = self.use[chosen.traffic]
        use.num_bytes += chosen.wanted
        use.chunks += 1
        use.waits += waited > 0
        use.wait_s += waited
        self._spend(chosen.wanted)
        self._served[chosen.traffic] = now
        chosen.placed -= chosen.wanted
        self._fair[chosen.level].served(chosen.wanted)
        chosen.flying.append((now, chosen.wanted))
        chosen.wanted = 0
        return chosen.order

    def sent(self, flow: int, *, now: float) -> None:
        """The oldest chunk under way of a flow is over, well or not."""
        self._advance(now)
        self._flows[flow].flying.pop(0)

    def leave(self, flow: int, *, now: float) -> None:
        """The flow wants nothing any more, and nothing of it is under way. Idempotent."""
        self._advance(now)
        gone = self._flows.pop(flow, None)
        if gone is None:
            return
        if gone.placed:
            self._fair[gone.level].leave(flow)
        if not any(other.placed for other in self._flows.values() if other.level is gone.level):
            self._fair[gone.level].clear()

    # ------------------------------------------------------------------------- collectives

    def near(self, whose: str, *, now: float, near: bool) -> None:
        """A switch of somebody will come soon, or not any more; near one, one chunk goes at a time."""
        self._advance(now)
        (self._near.add if near and self.limits.pause_s else self._near.discard)(whose)

    def begin_switch(self, *, now: float) -> None:
        """A switch's collectives take the link; to be ended as often as it is begun."""
        self._advance(now)
        self._switching += 1
        self._level = min(self._level, self._most_saved())

    def end_switch(self, *, now: float) -> None:
        """They are over."""
        self._advance(now)
        if not self._switching:
            raise InvariantBroken("a switch ends on this link that has not begun")
        self._switching -= 1

    def charge(self, traffic: TrafficClass, num_bytes: int, *, now: float) -> None:
        """Collectives have moved bytes without asking: others wait for what that took, at most a window."""
        self._advance(now)
        self.use[traffic].num_bytes += num_bytes
        self._spend(min(num_bytes, max(self._level + self.limits.window_bytes, 0.0)))

    # ------------------------------------------------------------------------------- time

    def delay_s(self, *, now: float) -> float:
        """Seconds after which `take` may answer otherwise, if nothing else happens; infinite if never."""
        self._advance(now)
        times = [flow.promoted_at - now for flow in self._waiting() if flow.may_be_promoted]
        if self._holding():
            times.append(self._credit_s)
        for traffic in (TrafficClass.HANDOFF, TrafficClass.PRECOPY):
            if self._wants(traffic):
                times.append(self._served[traffic] + self.limits.patience_s(traffic) - now)
        chosen = self._choose()
        if chosen is not None:
            times.append((chosen.wanted - self._level) / self._rate_bps())
            times += [start + STUCK_S - now for flow in self._flows.values() for start, _ in flow.flying]
        return min((time for time in times if time > _EPS_S), default=math.inf)

    def _advance(self, now: float) -> None:
        """Let time pass: tokens come in, and a pause's credit is spent or comes back."""
        passed = now - self._now
        if passed < 0:
            raise InvariantBroken(f"time went back by {-passed} s")
        if passed:
            held = min(passed, self._credit_s) if self._holding() else 0.0
            # While everybody is held, the whole budget comes in: the first chunk after a pause goes at once.
            for seconds, rate_bps in ((held, self.limits.rate_bps), (passed - held, self._rate_bps())):
                come = rate_bps * seconds if seconds else 0.0
                self._level = min(self._level + come, self._most_saved())
            self._credit_s -= held
            if not self._switching:
                self._credit_s = min(self._credit_s + passed, self.limits.pause_s)
            self._now = now
        for flow in self._waiting():
            if flow.may_be_promoted and now >= flow.promoted_at - _EPS_S:
                self._fair[flow.level].leave(flow.order)
                flow.promoted = True
                flow.tag = self._fair[flow.level].enter(flow.order, flow.placed)

    # -------------------------------------------------------------------------------- rules

    def _waiting(self) -> Iterator[_Flow]:
        return (flow for flow in self._flows.values() if flow.wanted)

    def _wants(self, traffic: TrafficClass) -> bool:
        return any(flow.traffic is traffic for flow in self._waiting())

    def _holding(self) -> bool:
        """True while a switch holds somebody back."""
        if not self._switching or self._credit_s <= _EPS_S:
            return False
        return any(flow.level is not TrafficClass.SWITCH for flow in self._waiting())

    def _sharing(self) -> bool:
        """True while a switch is under way that may hold others back, beside nobody who is as urgent."""
        if not self._switching or not self.limits.pause_s:
            return False
        return not any(flow.level is TrafficClass.SWITCH for flow in self._waiting())

    def _most_saved(self) -> float:
        """Of the budget, what may be saved up; nothing is made up for at a switch's expense."""
        return self.limits.window_bytes if self._switching else self.limits.burst_bytes

    def _rate_bps(self) -> float:
        """Of the budget, what comes in now."""
        return self.limits.rate_bps * (SWITCH_SHARE if self._sharing() else 1.0)

    def _choose(self) -> _Flow | None:
        """Whose turn it is, whether or not the link has room."""
        ready = list(self._waiting())
        if self._holding():
            ready = [flow for flow in ready if flow.level is TrafficClass.SWITCH]
            return min(ready, key=_turn, default=None)
        late = {flow.traffic: self._lateness(flow.traffic) for flow in ready}
        latest = max(late, key=lambda traffic: late[traffic], default=None)
        if latest is not None and late[latest] >= -_EPS_S:
            ready = [flow for flow in ready if flow.traffic is latest]
        return min(ready, key=_turn, default=None)

    def _lateness(self, traffic: TrafficClass) -> float:
        """Seconds that a class has waited beyond its patience; negative while it may wait."""
        return self._now - self._served[traffic] - self.limits.patience_s(traffic)

    def _has_room(self, num_bytes: int) -> bool:
        flying = sum(
            size
            for flow in self._flows.values()
            for start, size in flow.flying
            if self._now - start < STUCK_S - _EPS_S
        )
        window = self.limits.chunk_bytes if self._near or self._sharing() else self.limits.window_bytes
        return flying + num_bytes <= window

    def _affords(self, num_bytes: int) -> bool:
        return num_bytes - self._level <= self.limits.rate_bps * _EPS_S

    def _spend(self, num_bytes: float) -> None:
        if self.limits.rate_bps < math.inf:
            self._level -= num_bytes


def _turn(flow: _Flow) -> tuple[int, float, int]:
    return flow.level, flow.tag, flow.order
