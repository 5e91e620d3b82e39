"""The leader's loop: plan, send to all ranks, gather, tell; and the one owner of a group's life.

Everything runs on one event loop; the scheduler is called between awaits only, so it needs no lock.
Invariants: an idle group sends no step; a request that is open when the group ends hears `GroupFailed`.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from splash_core.errors import GroupFailed, SplashError, Unavailable
from splash_core.ids import SeqId
from splash_core.leader.link_notices import LinkNotices
from splash_core.leader.pace import StepPace
from splash_core.leader.ranks import RankPool
from splash_core.leader.steering import Steering
from splash_core.policy.snapshot import Snapshot, WaitingSequence
from splash_core.scheduling.events import (
    Event,
    FinishedEvent,
    PrefilledEvent,
    SwitchedEvent,
    SwitchRefusedEvent,
    TokenEvent,
)
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.precopy_pace import LinkView
from splash_core.scheduling.step import StepPlan

_log = logging.getLogger("splash.leader")
_LOOK_S = 0.05
"""How often an idle group with a pending switch or a pin looks around."""

SeqEvent = TokenEvent | FinishedEvent | PrefilledEvent


class GroupCondition(StrEnum):
    """Where a group is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(slots=True)
class Stream:
    """What happens to one sequence, as its request sees it."""

    _events: "asyncio.Queue[SeqEvent | SplashError]" = field(default_factory=asyncio.Queue)
    first_step_at: float | None = None
    """When the first step with the sequence began, seconds on the monotonic clock."""

    def put(self, event: SeqEvent | SplashError) -> None:
        """Append."""
        self._events.put_nowait(event)

    async def next(self) -> SeqEvent:
        """The next event; raises the error that ended the sequence."""
        event = await self._events.get()
        if isinstance(event, SplashError):
            raise event
        return event

    def take_ready(self) -> list[SeqEvent]:
        """Events that are there already."""
        ready: list[SeqEvent] = []
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, SplashError):
                self._events.put_nowait(event)
                break
            ready.append(event)
        return ready


class PhasePart(Protocol):
    """What a phase's service adds to the loop."""

    def queued(self) -> tuple[WaitingSequence, ...]:
        """Requests that wait outside the scheduler."""
        ...

    def before_step(self) -> None:
        """Called at each step boundary: admit what has room now."""
        ...

    def failed(self, error: GroupFailed) -> None:
        """Called once when the group has ended: tell those who wait outside the scheduler."""
        ...


class _NoPart:
    """A phase that keeps no queue of its own."""

    def queued(self) -> tuple[WaitingSequence, ...]:
        return ()

    def before_step(self) -> None:
        """Nobody to admit."""

    def failed(self, error: GroupFailed) -> None:
        """Nobody to tell."""


class GroupLeader:
    """Drives one group."""

    def __init__(
        self,
        scheduler: GroupScheduler,
        ranks: RankPool,
        steering: Steering,
        pace: StepPace,
        *,
        step_timeout_s: float,
        shared_link_bps: float = 0.0,
    ) -> None:
        self.scheduler = scheduler
        self.ranks = ranks
        self.steering = steering
        self.condition = GroupCondition.STARTING
        self.failure: GroupFailed | None = None
        self.pending_push_bytes = 0
        """Bytes of pushes under way, for the policy."""
        self.notices = LinkNotices()
        self._part: PhasePart = _NoPart()
        self._pace = pace
        self._step_timeout_s = step_timeout_s
        self._shared_link_bps = shared_link_bps
        self._streams: dict[SeqId, Stream] = {}
        self._wake = asyncio.Event()
        self._stop = False
        self._step_began: float | None = None

    def join(self, part: PhasePart) -> None:
        """Let a phase's service take part in the loop; called once, before `run`."""
        self._part = part

    # ---------------------------------------------------------------------------- requests

    def check_open(self) -> None:
        """Return if new requests are welcome.

        Raises:
            Unavailable: starting or draining.
            GroupFailed: the group has ended.
        """
        if self.failure is not None:
            raise self.failure
        if self.condition is not GroupCondition.READY:
            raise Unavailable(f"the group is {self.condition}; try another one, or later")

    def open_stream(self, seq: SeqId) -> Stream:
        """Listen to a sequence; to be called in the same turn in which the sequence was made."""
        stream = self._streams[seq] = Stream()
        self.wake()
        return stream

    def cancel(self, seq: SeqId) -> None:
        """Drop a sequence, wherever it is. Idempotent."""
        self._streams.pop(seq, None)
        self.scheduler.cancel(seq)
        self.wake()

    def release(self, seq: SeqId) -> None:
        """The pages of a prefilled sequence are not needed any more. Idempotent."""
        self._streams.pop(seq, None)
        self.scheduler.release(seq)
        self.wake()

    def deliver(self, events: tuple[Event, ...], plan: StepPlan | None = None) -> None:
        """Hand events to whoever waits for them."""
        for event in events:
            if isinstance(event, SwitchedEvent):
                assert plan is not None  # switches come out of steps only
                _log.info("%s", event.summary())
                self.steering.on_switched(event, plan)
            elif isinstance(event, SwitchRefusedEvent):
                self.steering.on_refused(event)
            else:
                stream = self._streams.get(event.seq)
                if stream is not None:
                    stream.put(event)
                if isinstance(event, FinishedEvent):
                    self._streams.pop(event.seq, None)

    # ---------------------------------------------------------------------------- the loop

    def wake(self) -> None:
        """Something may have become possible."""
        self._wake.set()

    async def run(self) -> None:
        """Drive the group until `stop`.

        Raises:
            GroupFailed: a rank died or missed its deadline; all open requests have been told.
        """
        self.condition = GroupCondition.READY
        try:
            while not self._stop:
                await self._turn()
        except GroupFailed as error:
            self.fail(error)
            raise
        except Exception as error:  # the service's main loop: its state cannot be trusted after any error
            _log.exception("the leader's loop broke")
            self.ranks.fail(f"leader: {type(error).__name__}: {error}")
            failure = self.ranks.failure or GroupFailed(f"leader: {type(error).__name__}: {error}")
            self.fail(failure)
            raise failure from error

    def stop(self) -> None:
        """End the loop after the step under way."""
        self._stop = True
        self.wake()

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests and wait for those running; returns how many are left."""
        if self.condition is GroupCondition.READY:
            self.condition = GroupCondition.DRAINING
        end = time.monotonic() + timeout_s
        while self.open_requests and self.failure is None and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)
        return self.open_requests

    @property
    def queue_length(self) -> int:
        """Requests that wait outside the scheduler."""
        return len(self._part.queued())

    @property
    def open_requests(self) -> int:
        """Requests that hold or want anything here."""
        return self.scheduler.count() + self.queue_length

    @property
    def step_age_s(self) -> float:
        """How long the step under way runs; 0 when idle."""
        return 0.0 if self._step_began is None else time.monotonic() - self._step_began

    def snapshot(self) -> Snapshot:
        """The scheduler's snapshot with what only the leader knows."""
        seen = self.scheduler.snapshot(queued=self._part.queued())
        return replace(
            seen,
            pending_handoff_bytes=seen.pending_handoff_bytes + self.pending_push_bytes,
            measured_step_s=self._pace.recent_s,
        )

    async def _turn(self) -> None:
        self._wake.clear()
        if self.ranks.failure is not None:
            raise self.ranks.failure
        self._part.before_step()
        self.steering.at_boundary(self.snapshot)
        link = LinkView(rate_bps=self._shared_link_bps, step_s=self._pace.recent_s or 0.0)
        self.scheduler.leave_room(link, pushing_bytes=self.pending_push_bytes)
        plan = self.scheduler.next_plan()
        self.deliver(self.scheduler.take_events())
        if plan is None:
            await self._idle()
            return
        self._step_began = time.monotonic()
        for new in plan.started:
            if new.seq in self._streams and self._streams[new.seq].first_step_at is None:
                self._streams[new.seq].first_step_at = self._step_began
        try:
            with self.notices.during(plan):
                results = await self.ranks.step(
                    plan, timeout_s=self._step_timeout_s, meanwhile=self.scheduler.tidy
                )
        finally:
            self._step_began = None
        self._pace.record(plan, max(result.times.total_s for result in results))
        self.deliver(self.scheduler.complete(results), plan)

    async def _idle(self) -> None:
        """Until something happens, a rank dies, or it is time to look around."""
        wake = asyncio.create_task(self._wake.wait())
        failed = asyncio.create_task(self.ranks.wait_failed())
        timeout = _LOOK_S if self.steering.watches else None
        try:
            await asyncio.wait({wake, failed}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wake.cancel()
            failed.cancel()

    def fail(self, error: GroupFailed) -> None:
        """The group has ended: tell everybody who waits."""
        self.failure = error
        self.condition = GroupCondition.FAILED
        for stream in self._streams.values():
            stream.put(error)
        self.steering.fail(error)
        self._part.failed(error)
