"""A simulated group: scheduler, pilot and clock, as a leader's loop has them.

At each boundary: what ended is told, requests that wait for pages are served, the pilot looks, and the next
steps begin. Invariant: whatever comes between takes effect at the end of the step under way, as in a leader.
"""

from collections import deque
from dataclasses import replace

from splash_core.dispatch.admission import Demand, GroupLoad
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Snapshot, WaitingSequence
from splash_core.scheduling.precopy_pace import LinkView
from splash_core.scheduling.roles import Role
from splash_core.simulate.agenda import EventOrder
from splash_core.simulate.cores import CoreClock
from splash_core.simulate.machine import Machine, StepRun
from splash_core.simulate.moves import Moves
from splash_core.simulate.pilots import Pilot
from splash_core.simulate.pricing import Pricing
from splash_core.simulate.runs import Run
from splash_core.simulate.strides import Stride
from splash_core.simulate.workload import Request
from splash_core.simulate.world import World
from splash_core.switch.manifest import SwitchMode


class Station:
    """One group of a simulated fleet."""

    def __init__(self, name: str, role: Role, machine: Machine, pilot: Pilot, *, world: World) -> None:
        self.name = name
        self.role = role
        self.machine = machine
        self.pilot = pilot
        self.pending_prompts = 0
        """Prompt tokens sent here whose first token is not there."""
        self.inbound_bytes = 0
        """Of handoffs that are on their way into the group."""
        self._world = world
        self._fleet = world.fleet
        self._agenda = world.agenda
        self._ledger = world.ledger
        config = world.fleet.config(role, name)
        self._pricing = Pricing(
            model=world.fleet.model,
            recorded_rows=config.recorded_rows,
            staging_bytes=config.staging_bytes,
        )
        self._clock = CoreClock(world.cores, self._repaced)
        self._queue: deque[tuple[Request, Demand]] = deque()
        self._run: Run | None = None
        self._turn = 0
        self._booked = False
        self._link_free_s = 0.0
        self._last_token: dict[int, float] = {}
        self._load: GroupLoad | None = None
        self._recent_s = 0.0
        """How long the last step took."""
        self._moves = Moves(name, fleet=world.fleet, pricing=self._pricing, ledger=world.ledger)
        world.ledger.starts[name] = machine.layout

    # ------------------------------------------------------------------------------ requests

    def submit(self, request: Request, demand: Demand) -> None:
        """A request wants pages for a prompt that is computed elsewhere."""
        self._queue.append((request, demand))
        self._catch_up()
        self._pump()
        self._load = None
        if self._run is None:
            self._wake()
        else:
            further = self._run.total - self._run.done - 1
            self._stop_after(self._run.done + 1 + self.machine.fitting(further))

    def add(self, request: Request) -> None:
        """A prompt is to be computed here."""
        self._catch_up()
        self.machine.add(request)
        self._load = None
        self._wake()

    def land(self, key: int) -> bool:
        """A prompt has arrived; True when its first token was the last."""
        self._catch_up()
        self._last_token[key] = self._agenda.now
        ended = self.machine.land(key)
        if ended:
            del self._last_token[key]
        self._load = None
        self._wake()
        return ended

    def release(self, key: int) -> None:
        """A prompt has left."""
        self.machine.release(key)
        self._load = None
        self._wake()

    @property
    def idle(self) -> bool:
        """True when nothing runs, waits or is held."""
        return self._run is None and not self._queue and self.machine.live == 0

    @property
    def load(self) -> GroupLoad:
        """The group as the router sees it."""
        if self._load is None:
            tokens = self.machine.promised()
            self._load = GroupLoad(
                address=self.name,
                group=self.name,
                limits=self._fleet.limits,
                kv_tokens_total=tokens.total,
                kv_tokens_projected=tokens.projected + sum(demand.kv_tokens for _, demand in self._queue),
                sequences=self.machine.live + len(self._queue),
                prompt_tokens_pending=self.pending_prompts,
            )
        return self._load

    def note_pending(self, tokens: int) -> None:
        """So many more (or fewer) prompt tokens have no first token yet."""
        self.pending_prompts += tokens
        self._load = None

    # ----------------------------------------------------------------------------- boundaries

    def _wake(self) -> None:
        """Something has changed: look at it as soon as no step is under way."""
        if self._run is not None:
            self._stop_after(self._run.stride.first_end_from(self._clock.work(self._agenda.now)))
        elif not self._booked:
            self._book(self._agenda.now)

    def _stop_after(self, steps: int) -> None:
        run = self._run
        if run is not None and steps < run.total:
            run.total = max(steps, run.done + 1)
            self._repaced()

    def _repaced(self) -> None:
        """What is under way ends at another time than was booked."""
        if self._run is not None:
            self._book(self._clock.when(self._run.stride.end(self._run.total)))

    def _book(self, when: float) -> None:
        self._turn += 1
        self._booked = True
        turn = self._turn
        self._agenda.at(when, EventOrder.BOUNDARY, lambda: self._boundary(turn))

    def _boundary(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._booked = False
        self._end_run()
        self._pump()
        self._load = None
        self.pilot.at_boundary(self._agenda.now, self._look, self._move, self.machine.limit_chunk)
        if self._moves.copy_ahead:
            link = LinkView(rate_bps=self._fleet.model.profile.link_bps, step_s=self._recent_s)
            self.machine.leave_room(link, self._pending_bytes)
        batch = self.machine.begin(self._world.most_steps)
        if batch is not None:
            self._begin(batch)

    def _begin(self, batch: StepRun) -> None:
        now, layout = self._agenda.now, self.machine.layout
        self._clock.begin(now)
        step_s = self._pricing.step_s(batch, layout)
        longer = self._moves.longer(batch, layout, now=now, step_s=step_s)
        extra_s = longer.step_s
        if longer.sent_s:
            self._link_free_s = max(self._link_free_s, now) + longer.sent_s
        if batch.steps == 1:
            stride = Stride.of(now, 1, lambda _: step_s, extra_s=extra_s)
        else:
            loads = self._pricing.decode_loads(batch)
            stride = Stride.of(now, batch.steps, lambda step: self._pricing.decode_s(loads.at(step), layout))
        total = batch.steps
        if total > 1:
            total = stride.first_end_from(self._clock.work(self.pilot.next_look_s))
        fresh = {row.key: self._last_token.pop(row.key) for row in batch.rows if row.key in self._last_token}
        self._run = Run(batch, layout, stride, total, fresh=fresh)
        self._repaced()

    def _end_run(self) -> None:
        run = self._run
        if run is None:
            return
        self._count(run, run.total)
        self._run = None
        self._clock.end(self._agenda.now)
        self._recent_s = run.stride.lasting(run.total)
        if self.role is Role.PREFILL:
            self._push(run.batch)
        ended = self.machine.complete(run.total - run.done)
        for key in ended.prefilled:
            if self.role is not Role.PREFILL:
                self._last_token[key] = self._agenda.now
            self._world.told.prefilled(key, self.name, self._link_free_s)
        for key in ended.finished:
            self._last_token.pop(key, None)
            self._world.told.finished(key)

    def _catch_up(self) -> None:
        """Tell the machine which steps have ended, so that it can answer for this moment."""
        run = self._run
        if run is None:
            return
        ended = min(run.stride.ended_by(self._clock.work(self._agenda.now)), run.total - 1)
        if ended > run.done:
            self._count(run, ended)
            self.machine.advance(ended - run.done)
            run.done = ended

    def _count(self, run: Run, end: int) -> None:
        """Enter steps `run.done` … `end`-1 into the ledger."""
        self._ledger.steps[run.layout] += end - run.done
        if self.role is not Role.PREFILL:
            run.enter_gaps(self._ledger, end)

    def _pump(self) -> None:
        """Serve those who wait for pages, in order, while there is room."""
        while self._queue:
            request, _ = self._queue[0]
            if not self.machine.reserve(request):
                return
            self._queue.popleft()
            self._world.told.leased(request.key)

    # -------------------------------------------------------------------------------- layouts

    def _look(self) -> Snapshot:
        now = self._agenda.now
        queued = [
            WaitingSequence(prompt_tokens=request.prompt_tokens, projected_output=request.max_tokens)
            for request, _ in self._queue
        ]
        return replace(self.machine.snapshot(now, queued), pending_handoff_bytes=self._pending_bytes)

    def _move(self, layout: Layout, mode: SwitchMode) -> str:
        snapshot = self.machine.snapshot(self._agenda.now, ())
        why_not = self.machine.switch(layout, mode)
        if not why_not:
            owners = snapshot.owned_tokens()
            self._moves.ask(snapshot.layout, mode, owner_tokens=owners, free=self.pilot.free_switches)
        return why_not

    @property
    def _pending_bytes(self) -> int:
        """Of handoffs under way, out of the group and into it."""
        leaving = max(self._link_free_s - self._agenda.now, 0.0) * self._rate_bps
        return round(leaving) + self.inbound_bytes

    @property
    def _rate_bps(self) -> float:
        """Of pushes out of the group, over the ranks that hold its histories."""
        per_rank = self._fleet.handoff_bps or self._fleet.model.profile.link_bps
        return per_rank * self._fleet.capacities[self.machine.layout].num_owners

    def _push(self, batch: StepRun) -> None:
        """What a step has computed leaves at once, after what left before it."""
        size = self._pricing.prompt_bytes(sum(row.num_rows for row in batch.rows))
        begin = max(self._link_free_s, self._agenda.now)
        latency = self._fleet.model.profile.collective_latency_s
        self._link_free_s = begin + latency + size / self._rate_bps
