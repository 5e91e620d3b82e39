"""The arbiter of a link as threads use it; all that they share is here, all that it decides in `arbiter`.

Invariant: whoever waits is woken when its turn may have come; nobody is called back with the lock held.
"""

import math
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from splash_core.transport.arbiter import ClassUse, LinkArbiter
from splash_core.transport.classes import TrafficClass
from splash_core.transport.counters import CounterSource, TrafficCount, TrafficSample, traffic_name
from splash_core.transport.limits import LinkLimits


def _nobody() -> None:
    """Wakes nobody."""


class LinkFlow:
    """One writer's place at a link: want a chunk, send it when named `first`, say when it is over."""

    def __init__(self, link: "BandwidthArbiter", number: int) -> None:
        self._link = link
        self.number = number
        """In the link's books."""

    def want(self, num_bytes: int) -> None:
        """The next chunk stands ready; of no effect while one does, or may go already."""
        self._link.ask(self.number, num_bytes)

    def sent(self) -> None:
        """The oldest chunk under way is over, well or not."""
        self._link.ended(self.number)

    def close(self) -> None:
        """Nothing is wanted and nothing under way any more. Idempotent."""
        self._link.part(self.number)


class BandwidthArbiter(CounterSource):
    """One physical link of one rank. Safe to use from any thread."""

    def __init__(
        self, limits: LinkLimits | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._arbiter = LinkArbiter(limits or LinkLimits(), now=clock())
        self._granted: dict[int, None] = {}
        """Flows whose turn has come and who do not know it yet, in that order."""
        self._wakes: dict[int, Callable[[], None]] = {}

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that may be wanted."""
        return self._arbiter.limits.chunk_bytes

    # ------------------------------------------------------------------------------ writers

    def flow(
        self,
        traffic: TrafficClass,
        *,
        deadline_s: float = math.inf,
        num_bytes: int = 0,
        wake: Callable[[], None] = _nobody,
    ) -> LinkFlow:
        """A writer's place at the link.

        Args:
            traffic: its class.
            deadline_s: seconds from now until it has to be over; past half of it a handoff is promoted.
            num_bytes: what it will send in all, if that is known: those go first who would be done first.
            wake: called from any thread when its turn has come; it must neither block nor take a lock.
        """
        with self._lock:
            number = self._arbiter.join(
                traffic, now=self._clock(), deadline_s=deadline_s, num_bytes=num_bytes
            )
            self._wakes[number] = wake
        return LinkFlow(self, number)

    def delay_s(self) -> float:
        """Seconds after which it is worth asking again though nobody was woken; infinite if it never is."""
        with self._lock:
            return self._arbiter.delay_s(now=self._clock())

    def ask(self, number: int, num_bytes: int) -> None:
        """`LinkFlow.want`."""
        with self._lock:
            if number not in self._granted:
                self._arbiter.want(number, num_bytes, now=self._clock())

    def first(self, flows: Iterable[LinkFlow]) -> LinkFlow | None:
        """Of several flows the one whose turn came first, if any has come; it is told once a chunk."""
        by_number = {flow.number: flow for flow in flows}
        with self._changes(by_number):
            pass
        with self._lock:
            number = next((number for number in self._granted if number in by_number), None)
            if number is None:
                return None
            del self._granted[number]
        return by_number[number]

    def ended(self, number: int) -> None:
        """`LinkFlow.sent`."""
        with self._changes({number}) as now:
            self._arbiter.sent(number, now=now)

    def part(self, number: int) -> None:
        """`LinkFlow.close`."""
        with self._changes({number}) as now:
            self._arbiter.leave(number, now=now)
            self._granted.pop(number, None)
            self._wakes.pop(number, None)

    # --------------------------------------------------------------------------- collectives

    def announce(self, whose: str, *, near: bool) -> None:
        """A switch of somebody, by any name, will come soon, or will not any more."""
        with self._changes() as now:
            self._arbiter.near(whose, now=now, near=near)

    @contextmanager
    def switching(self) -> Iterator[None]:
        """Inside the block a switch's collectives use the link."""
        with self._changes() as now:
            self._arbiter.begin_switch(now=now)
        try:
            yield
        finally:
            with self._changes() as now:
                self._arbiter.end_switch(now=now)

    def charge(self, traffic: TrafficClass, num_bytes: int) -> None:
        """Collectives of a class have moved bytes over the link."""
        with self._changes() as now:
            self._arbiter.charge(traffic, num_bytes, now=now)

    def use(self) -> Mapping[TrafficClass, ClassUse]:
        """What each class has had so far."""
        with self._lock:
            return {traffic: replace(use) for traffic, use in self._arbiter.use.items()}

    def samples(self) -> tuple[TrafficSample, ...]:
        """The waits of each class that has asked; whoever moves bytes counts those."""
        used = [(traffic_name(traffic), use) for traffic, use in self.use().items() if use.chunks]
        waits = [TrafficSample(TrafficCount.WAITS, name, "", use.waits) for name, use in used]
        return (
            *waits,
            *(TrafficSample(TrafficCount.WAIT_SECONDS, name, "", use.wait_s) for name, use in used),
        )

    # ------------------------------------------------------------------------------- inside

    @contextmanager
    def _changes(self, callers: Container[int] = ()) -> Iterator[float]:
        """Do something with the lock held; whose turn has come by it is woken afterwards, but for callers."""
        wakes: set[Callable[[], None]] = set()
        with self._lock:
            now = self._clock()
            yield now
            while (number := self._arbiter.take(now=now)) is not None:
                self._granted[number] = None
                if number not in callers:
                    wakes.add(self._wakes[number])
        for wake in wakes:
            wake()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLinks:
    """A rank's links: to the ranks of its group, and to other groups' memory."""

    group: tuple[BandwidthArbiter, ...]
    """Those that the group's collectives may use."""
    phase: BandwidthArbiter
    """To other hosts: what a network interface carries."""
    host: BandwidthArbiter
    """To memory on the same host, which needs no network: it has no budget, and its writes wait for none of
    those that leave the host."""

    @classmethod
    def of(cls, device: str, *, phase: LinkLimits, host: LinkLimits) -> "RankLinks":
        """On a CPU collectives use the same links as handoffs; a GPU's NVLink is another one."""
        out, within = BandwidthArbiter(phase), BandwidthArbiter(host)
        group = (out, within) if device == "cpu" else (BandwidthArbiter(LinkLimits()),)
        return cls(group=group, phase=out, host=within)

    @classmethod
    def unlimited(cls) -> "RankLinks":
        """For a rank that shares them with nobody."""
        return cls.of("cpu", phase=LinkLimits(), host=LinkLimits())
