"""Runs sequences: entry to the queue, placement, tries on other groups, and the record of each.

Invariant: every sequence that enters is discharged exactly once, however it ends; a try is repeated only
while nothing of the sequence has been shown, and never after a client's error.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass

from services.router.attempt import AttemptFailed, AttemptHooks, attempt, score
from services.router.charge import Charge
from services.router.events import Finished, SequenceEvent, SequenceJob
from services.router.registry import Registry, no_worker
from services.router.timeline import Timeline
from splash_core.dispatch.admission import (
    Demand,
    QueueLimits,
    QueueLoad,
    project,
    refuse_entry,
    retry_after_s,
)
from splash_core.dispatch.placement import NoRoom, Placement, place, place_scoring
from splash_core.errors import Overloaded, SplashError, Unavailable

_KEPT_TIMELINES = 1024
_KEPT_LEAVES = 32
_PACE_WINDOW_S = 60.0
"""What left the queue longer ago says nothing of its present pace."""
_UNKNOWN_PACE_S = 0.1
_LOG = logging.getLogger("splash.router")


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """See `RouterConfig` for units and defaults."""

    limits: QueueLimits
    expected_output_tokens: int
    kv_overcommit: float = 1.0


class Dispatcher:
    """The way from a validated job to its events."""

    def __init__(self, registry: Registry, settings: DispatchSettings, *, clock: Callable[[], float]) -> None:
        self.registry = registry
        self.timelines: deque[Timeline] = deque(maxlen=_KEPT_TIMELINES)
        self.leaving = False
        """Unready, but what still comes is served: for a moment after SIGTERM."""
        self.draining = False
        """New requests are refused."""
        self._settings = settings
        self._clock = clock
        self._placing = asyncio.Lock()
        self._placements = 0
        self._waiting: Counter[str] = Counter()
        self._running = 0
        self._left_at_s: deque[float] = deque(maxlen=_KEPT_LEAVES)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Sequences between entry and end."""
        return self._running

    @property
    def waiting(self) -> QueueLoad:
        """Sequences that wait for their first token."""
        return QueueLoad(requests=self._waiting["requests"], prompt_tokens=self._waiting["prompt_tokens"])

    def check_entry(self, *, sequences: int, prompt_tokens: int, scoring: bool = False) -> None:
        """Refuse a request that would wait behind too much; raises `Overloaded` or `Unavailable`."""
        if self.draining:
            raise Unavailable("the router is draining; try another one or later")
        causes = self.registry.causes(scoring=scoring)
        if causes:
            raise no_worker(causes)
        waiting = self.waiting
        reason = refuse_entry(
            sequences=sequences, prompt_tokens=prompt_tokens, waiting=waiting, limits=self._settings.limits
        )
        if reason is not None:
            raise Overloaded(
                reason, retry_after_s=retry_after_s(waiting, seconds_per_request=self._seconds_per_request())
            )

    async def wait_idle(self, *, timeout_s: float) -> bool:
        """Wait until no sequence runs; False when some still do."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def generate(self, job: SequenceJob) -> AsyncGenerator[SequenceEvent, None]:
        """Events of one sequence; closing the generator frees it everywhere."""
        timeline = Timeline(request_id=job.request_id, clock=self._clock)
        self.timelines.append(timeline)
        entry = _QueuePlace(self._waiting, prompt_tokens=len(job.prompt))
        self._running += 1
        self._idle.clear()
        try:
            async with aclosing(self._tries(job, timeline, entry)) as events:
                async for event in events:
                    if not entry.left:
                        self._left_at_s.append(self._clock())
                        entry.leave()
                    if isinstance(event, Finished):
                        timeline.mark("finished")
                    yield event
        finally:
            timeline.end()
            entry.leave()
            _LOG.info("sequence ended", extra={"fields": timeline.to_json()})
            self._running -= 1
            if self._running == 0:
                self._idle.set()

    def _seconds_per_request(self) -> float:
        """The pace at which the queue has been served lately."""
        since = self._clock() - _PACE_WINDOW_S
        recent = [left_at_s for left_at_s in self._left_at_s if left_at_s >= since]
        if len(recent) < 2:
            return _UNKNOWN_PACE_S
        return (recent[-1] - recent[0]) / (len(recent) - 1)

    async def _tries(
        self, job: SequenceJob, timeline: Timeline, entry: "_QueuePlace"
    ) -> AsyncGenerator[SequenceEvent, None]:
        blamed: set[frozenset[str]] = set()
        failure: SplashError | None = None
        while True:
            placement, charge = await self._placed(job, blamed, failure)
            timeline.place(placement)
            try:
                async with aclosing(
                    self._attempt(job.within(placement.max_model_len), placement, charge, timeline)
                ) as events:
                    async for event in events:
                        yield event
                return
            except AttemptFailed as failed:
                failure = failed.cause
                for address in failed.blamed:
                    self.registry.suspect(address)
                if entry.left or not isinstance(failure, Unavailable | Overloaded):
                    raise failure from failed
                blamed.add(failed.blamed)
            finally:
                self.registry.discharge(charge)

    async def _placed(
        self, job: SequenceJob, blamed: Collection[frozenset[str]], failure: SplashError | None
    ) -> tuple[Placement, Charge]:
        """Wait for room, first come first served; raises when no group is left to try."""
        demand = project(
            prompt_tokens=len(job.prompt),
            max_tokens=job.sampling.max_tokens,
            expected_output=self._settings.expected_output_tokens,
            required_output=job.required_output,
        )
        if demand.required_output_tokens == 0:
            # No decode group takes part, so there is no room to wait for.
            loads = self.registry.prefills(blamed=blamed)
            able = [load for load in loads if demand.prompt_tokens <= load.limits.max_request_tokens]
            if not able:
                raise failure or self._unserved(demand, scoring=True)
            return self._charged(place_scoring(able, rotation=self._placements), demand)
        async with self._placing:
            while True:
                pairs = [pair for pair in self.registry.pairs(blamed=blamed) if pair.limits.hold(demand)]
                if not pairs:
                    raise failure or self._unserved(demand)
                placed = place(
                    pairs,
                    demand,
                    rotation=self._placements,
                    overcommit=self._settings.kv_overcommit,
                )
                if not isinstance(placed, NoRoom):
                    return self._charged(placed, demand)
                await self.registry.wait_for_change()

    def _charged(self, placed: Placement, demand: Demand) -> tuple[Placement, Charge]:
        self._placements += 1
        return placed, self.registry.charge(prefill=placed.prefill, decode=placed.decode, demand=demand)

    def _unserved(self, demand: Demand, *, scoring: bool = False) -> Unavailable:
        """Why no group can be given the request now, though some could when it was read."""
        causes = self.registry.causes(scoring=scoring)
        longest = demand.prompt_tokens + demand.required_output_tokens
        return no_worker(causes or [f"none that can hold {longest} tokens is ready"])

    def _attempt(
        self, job: SequenceJob, placement: Placement, charge: Charge, timeline: Timeline
    ) -> AsyncGenerator[SequenceEvent, None]:
        def leased() -> None:
            self.registry.leased(charge)
            timeline.mark("leased")

        def first_token() -> None:
            self.registry.drawn(charge)
            timeline.mark("first_token")

        hooks = AttemptHooks(
            leased=leased,
            prefilled=timeline.prefilled,
            first_token=first_token,
            decoded=timeline.decoded,
        )
        prefill = self.registry.workers[placement.prefill]
        if placement.decode is None:
            return score(job, prefill, hooks)
        decode = self.registry.workers[placement.decode]
        return attempt(job, prefill=prefill, decode=decode, hooks=hooks)


class _QueuePlace:
    """One sequence's place in the queue, given back at its first event or its end."""

    def __init__(self, waiting: Counter[str], *, prompt_tokens: int) -> None:
        self._waiting = waiting
        self._prompt_tokens = prompt_tokens
        self.left = False
        self._count(1)

    def leave(self) -> None:
        """Give the place back; safe to call again."""
        if not self.left:
            self.left = True
            self._count(-1)

    def _count(self, sign: int) -> None:
        self._waiting["requests"] += sign
        self._waiting["prompt_tokens"] += sign * self._prompt_tokens
