"""A link and its users, played event by event: what the arbiter is asked, and when chunks are over."""

import heapq
import itertools
import math
from dataclasses import dataclass, field

from splash_core.transport.arbiter import STUCK_S, LinkArbiter
from splash_core.transport.classes import TrafficClass
from splash_core.transport.limits import LinkLimits


@dataclass(frozen=True, kw_only=True)
class Writer:
    """One flow: from `at` on it has `chunks` to send, each of them ready once the one before is over."""

    traffic: TrafficClass
    chunks: tuple[int, ...]
    at: float = 0.0
    deadline_s: float = math.inf
    tells: bool = False
    """Whether it says at once how much that is."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """One switch."""

    at: float
    until: float


@dataclass(frozen=True)
class Sent:
    """One chunk that went."""

    time: float
    writer: int
    num_bytes: int
    since: float
    """When it was asked for."""


@dataclass
class World:
    """Plays writers and switches on an arbiter, and looks at it after every event.

    Args:
        limits: of the link.
        speed: at which chunks really pass, bytes per second each: slower than the budget, or faster.
    """

    limits: LinkLimits
    speed: float = math.inf
    sent: list[Sent] = field(default_factory=list)

    def play(self, writers: list[Writer], switches: list[Pause] = [], *, until: float = math.inf) -> None:  # noqa: B006
        """Until everything is sent, or it is `until`."""
        self._arbiter = LinkArbiter(self.limits)
        self._writers = writers
        self._events: list[tuple[float, int, str, int]] = []
        self._order = itertools.count()
        self._flows: dict[int, int] = {}
        self._left = [list(writer.chunks) for writer in writers]
        self._asked: dict[int, float] = {}
        self._flying: dict[int, tuple[float, int]] = {}
        self._bucket = (0.0, float(self.limits.burst_bytes))
        self._switching = 0
        for number, writer in enumerate(writers):
            self._at(writer.at, "come", number)
        for number, switch in enumerate(switches):
            self._at(switch.at, "begin", number)
            self._at(switch.until, "end", number)
        now = 0.0
        while self._events or self._asked:
            coming = self._events[0][0] if self._events else math.inf
            then = min(coming, now + self._arbiter.delay_s(now=now))
            assert then < math.inf, f"{self._asked} wait for ever"
            if then > until:
                return
            now = then
            while self._events and self._events[0][0] <= now:
                _, _, kind, number = heapq.heappop(self._events)
                self._happens(kind, number, now)
            self._pump(now)

    def _at(self, time: float, kind: str, number: int) -> None:
        heapq.heappush(self._events, (time, next(self._order), kind, number))

    def _happens(self, kind: str, number: int, now: float) -> None:
        arbiter = self._arbiter
        if kind == "come":
            writer = self._writers[number]
            self._flows[number] = arbiter.join(
                writer.traffic,
                now=now,
                deadline_s=writer.deadline_s,
                num_bytes=sum(writer.chunks) if writer.tells else 0,
            )
            self._ask(number, now)
        elif kind == "sent":
            del self._flying[number]
            arbiter.sent(self._flows[number], now=now)
            if not self._left[number]:
                arbiter.leave(self._flows[number], now=now)
            else:
                self._ask(number, now)
        elif kind == "begin":
            self._bucket = (now, min(self._tokens(now), float(self.limits.window_bytes)))
            self._switching += 1
            arbiter.begin_switch(now=now)
        else:
            self._bucket = (now, self._tokens(now))
            self._switching -= 1
            arbiter.end_switch(now=now)

    def _ask(self, number: int, now: float) -> None:
        if self._left[number]:
            arbiter = self._arbiter
            arbiter.want(self._flows[number], self._left[number][0], now=now)
            self._asked[number] = now

    def _pump(self, now: float) -> None:
        by_flow = {flow: number for number, flow in self._flows.items()}
        while (flow := self._arbiter.take(now=now)) is not None:
            number = by_flow[flow]
            size = self._left[number].pop(0)
            self.sent.append(Sent(now, number, size, self._asked.pop(number)))
            self._flying[number] = (now, size)
            self._bucket = (now, self._tokens(now) - size)
            assert self._under_way(now) <= self.limits.window_bytes
            self._at(now + (0.0 if self.speed == math.inf else size / self.speed), "sent", number)
        self._look(now)

    def _under_way(self, now: float) -> int:
        """Bytes that are on the link, and do not wait for a peer."""
        return sum(size for start, size in self._flying.values() if now - start < STUCK_S - 1e-6)

    def _look(self, now: float) -> None:
        """What waits must have a reason: the budget, room on the link, or a switch."""
        full = self._under_way(now) > self.limits.window_bytes - self.limits.chunk_bytes
        spent = self._tokens(now) < self.limits.chunk_bytes
        reason = full or spent or self._switching
        assert reason or not self._asked, f"idle at {now}: {self._asked}"

    def _tokens(self, now: float) -> float:
        """The budget, counted again from what was sent; beside a switch none need come in."""
        then, level = self._bucket
        come = 0.0 if self._switching else self.limits.rate_bps * (now - then)
        return min(level + come, float(self.limits.burst_bytes))

    def bytes_of(self, writer: int) -> int:
        """Sent by one writer."""
        return sum(entry.num_bytes for entry in self.sent if entry.writer == writer)
