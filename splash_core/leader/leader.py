"""The leader's loop: plan, send to all ranks, gather, tell; and the one owner of a group's life.

It runs one step ahead: the next step is with the ranks before the results of this one are back, wherever the
scheduler can plan it by then. Everything runs on one event loop; the scheduler is called between awaits only,
so it needs no lock.
Invariants: an idle group sends no step; a request that is open when the group ends hears `GroupFailed`.
"""

import asyncio
import logging
import time
from collections import deque
from dataclasses import replace
from enum import StrEnum

from splash_core.errors import GroupFailed, Unavailable
from splash_core.ids import SeqId
from splash_core.leader.link_notices import LinkNotices
from splash_core.leader.pace import StepPace
from splash_core.leader.part import NoPart, PhasePart, Wait
from splash_core.leader.ranks import RankPool
from splash_core.leader.steering import Steering
from splash_core.leader.streams import SequenceStream
from splash_core.policy.snapshot import Snapshot
from splash_core.policy.step_totals import StepTotals
from splash_core.scheduling.events import Event, FinishedEvent, SwitchedEvent, SwitchRefusedEvent
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.precopy_pace import LinkView
from splash_core.scheduling.step import StepPlan
from splash_core.scheduling.under_way import MOST_UNDER_WAY

_log = logging.getLogger("splash.leader")
_LOOK_S = 0.05
"""How often an idle group with a pending switch or a pin looks around."""


class GroupCondition(StrEnum):
    """Where a group is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


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
        self._part: PhasePart = NoPart()
        self._pace = pace
        self._step_timeout_s = step_timeout_s
        self._shared_link_bps = shared_link_bps
        self._streams: dict[SeqId, SequenceStream] = {}
        self._wake = asyncio.Event()
        self._stop = False
        self._sent: deque[StepPlan] = deque()
        """Steps under way, in the order in which they end."""
        self._step_began: float | None = None
        """When the oldest of them could begin."""
        self._step_ended: float | None = None
        """When the last step ended; None after the group was idle."""
        self._paused_s = 0.0
        """How long no step was under way before the oldest one, though there was something to run."""

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

    def open_stream(self, seq: SeqId) -> SequenceStream:
        """Listen to a sequence; to be called in the same turn in which the sequence was made."""
        stream = self._streams[seq] = SequenceStream()
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
                self.steering.on_switched(event, plan, paused_s=self._paused_s)
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
            while self._sent:
                await self._finish()
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
        """End the loop after the steps under way."""
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
    def step_totals(self) -> StepTotals:
        """What its steps have amounted to."""
        return self._pace.totals

    def note_first_token(self, ttft_s: float) -> None:
        """A prompt has got its first token so long after it had come."""
        self._pace.first_token(ttft_s)

    @property
    def step_age_s(self) -> float:
        """How long the oldest step under way runs; 0 when idle."""
        return 0.0 if self._step_began is None else time.monotonic() - self._step_began

    def waits(self) -> tuple[Wait, ...]:
        """What other groups have yet to do before this one is done with something."""
        return self._part.waits()

    def snapshot(self) -> Snapshot:
        """The scheduler's snapshot with what only the leader knows."""
        seen = self.scheduler.snapshot(queued=self._part.queued())
        # Handoffs in a switch's way are those on its links: not where GPUs switch over links of their own.
        pending = seen.pending_handoff_bytes + self.pending_push_bytes if self._shared_link_bps else 0
        return replace(
            seen,
            pending_handoff_bytes=pending,
            measured_step_s=self._pace.recent_s,
        )

    async def _turn(self) -> None:
        self._wake.clear()
        if self.ranks.failure is not None:
            raise self.ranks.failure
        while len(self._sent) < MOST_UNDER_WAY and await self._begin():
            pass
        if self._sent:
            await self._finish()
        else:
            await self._idle()

    async def _begin(self) -> bool:
        """Plan a step and send it; False when there is none (yet)."""
        self._part.before_step()
        self.steering.at_boundary(self.snapshot)
        link = LinkView(rate_bps=self._shared_link_bps, step_s=self._pace.recent_s or 0.0)
        self.scheduler.leave_room(link, pushing_bytes=self.pending_push_bytes)
        plan = self.scheduler.next_plan()
        self.deliver(self.scheduler.take_events())
        if plan is None:
            return False
        self._part.planned(plan)
        self.steering.forecasts.planned(plan)
        await self.ranks.begin(plan)
        self._sent.append(plan)
        self._tell_links()
        if len(self._sent) == 1:
            now = time.monotonic()
            self._paused_s = 0.0 if self._step_ended is None else now - self._step_ended
            self._note_begin(now)
        self.scheduler.tidy()
        return True

    async def _finish(self) -> None:
        """Wait for the oldest step under way, and tell what it has done."""
        plan = self._sent[0]
        results = await self.ranks.finish(plan.step, timeout_s=self._step_timeout_s)
        self._sent.popleft()
        self._tell_links()
        step_s = max(result.times.total_s for result in results)
        self._pace.record(plan, step_s)
        self.steering.forecasts.stepped(plan, step_s)
        self.deliver(self.scheduler.complete(results), plan)
        self._step_ended, self._step_began = time.monotonic(), None
        if self._sent:
            self._paused_s = 0.0
            self._note_begin(self._step_ended)

    def _tell_links(self) -> None:
        """Tell writers of switches, unless those have a link of their own (a GPU's)."""
        if self._shared_link_bps:
            self.notices.under_way(self._sent)

    def _note_begin(self, now: float) -> None:
        """The oldest step under way can begin."""
        self._step_began = now
        for new in self._sent[0].started:
            stream = self._streams.get(new.seq)
            if stream is not None and stream.first_step_at is None:
                stream.first_step_at = now

    async def _idle(self) -> None:
        """Until something happens, a rank dies, or it is time to look around."""
        self._step_ended = None
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
        self._step_began = None
        self.notices.under_way(())
        self.condition = GroupCondition.FAILED
        for stream in self._streams.values():
            stream.put(error)
        self.steering.fail(error)
        self._part.failed(error)
