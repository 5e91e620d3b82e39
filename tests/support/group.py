"""Whole groups without services: the leader's scheduler drives real engines on threads or processes.

`Group` is one group; `Pair` is a prefill and a decode group with the handoff between them done
as in production (plan, claim, page copies, completion), only that a push is a copy between two tensors.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from splash_core.errors import Conflict
from splash_core.ids import GroupId, RequestId, SeqId
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageTable
from splash_core.layout.slots import ArenaMap, page_bytes
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import (
    Event,
    FinishedEvent,
    PrefilledEvent,
    SwitchDeferred,
    SwitchedEvent,
    SwitchRefusedEvent,
    TokenEvent,
)
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.leases import Grant
from splash_core.scheduling.roles import Role
from splash_core.scheduling.step import DrawnToken, StepPlan, StepResult, TokenLogprobs
from splash_core.scheduling.under_way import MOST_UNDER_WAY
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.handoff import HandoffWrite
from splash_core.switch.manifest import Refusal, SwitchMode
from tests.support.handovers import Handovers
from tests.support.ranks import Ranks


def arena_with(
    spec: ModelSpec, *, num_ranks: int, page_size: int, elem_bytes: int, ordinary: int
) -> ArenaMap:
    """An arena with `ordinary` ordinary slots a rank."""
    slot = page_bytes(spec, page_size=page_size, elem_bytes=elem_bytes)
    probe = ArenaMap.build(
        spec, num_ranks=num_ranks, page_size=page_size, elem_bytes=elem_bytes, arena_bytes=1 << 34
    )
    return ArenaMap.build(
        spec,
        num_ranks=num_ranks,
        page_size=page_size,
        elem_bytes=elem_bytes,
        arena_bytes=(probe.ordinary[0] + ordinary) * slot,
    )


class Group:
    """A scheduler and the ranks that execute its plans; `reset` starts a new life in any layout."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.arena = ranks.arena
        self.spec = ranks.spec
        self.scheduler: GroupScheduler
        self.seen: Counter[str] = Counter()
        """Over all lives: evacuations, recomputed sequences, copies ahead, directions of switches."""
        self.last_plan: StepPlan | None = None
        """What the last call of `step` executed."""
        self._started: set[SeqId] = set()
        self._late: deque[list[StepResult]] = deque()
        """Results of steps that the scheduler has not heard of."""

    def reset(self, layout: Layout, config: SchedulerConfig) -> None:
        """Fresh scheduler, arenas as after loading."""
        self.ranks.ask(layout)
        self._started = set()
        self._late.clear()
        self.scheduler = GroupScheduler(
            spec=self.spec, arena=self.arena, layout=layout, config=config, clock=lambda: 0.0
        )

    def step(self) -> tuple[Event, ...]:
        """One step if there is anything to do."""
        plan = self.last_plan = self.scheduler.next_plan()
        if plan is None:
            return self.scheduler.take_events()
        self._look_at(plan)
        events = self.scheduler.complete(self.ranks.ask(plan))
        self.scheduler.check_integrity()
        return events

    def step_ahead(self) -> tuple[Event, ...]:
        """As a leader that runs one step ahead: ranks have the next step before it hears of this one."""
        while len(self._late) < MOST_UNDER_WAY and (plan := self.scheduler.next_plan()) is not None:
            self._look_at(plan)
            self.seen["ahead"] += len(self._late)
            self.seen["tokens ahead"] += any(isinstance(rows.tokens, DrawnToken) for rows in plan.sequences)
            self._late.append(self.ranks.ask(plan))
            self.scheduler.check_integrity()
        if not self._late:
            return self.scheduler.take_events()
        events = self.scheduler.complete(self._late.popleft())
        self.scheduler.check_integrity()
        return events

    def _look_at(self, plan: StepPlan) -> None:
        started = {new.seq for new in plan.started}
        self.seen["recomputed"] += len(started & self._started)
        self._started |= started
        if plan.manifest is not None:
            self.seen["evacuations"] += bool(plan.manifest.boundary_chunks)
            self.seen[f"{plan.manifest.layout_from}→{plan.manifest.layout_to}"] += 1
            self.seen["commits"] += plan.mode is SwitchMode.PRECOPIED
        if plan.precopy is not None:
            self.seen["layers ahead"] += len(plan.precopy.weight_layers)
            self.seen["pages ahead"] += len(plan.precopy.moves)

    @property
    def table(self) -> PageTable:
        """The scheduler's page table, to look at."""
        return self.scheduler._parts.residency.table

    def page(self, rank: int, slot: int) -> torch.Tensor:
        """The bytes of a slot."""
        size = self.arena.slot_bytes
        return self.ranks.memories[rank][slot * size : (slot + 1) * size]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of a schedule."""

    arrives: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    cancelled: int | None = None
    """Tick at which the client leaves."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One switch of a schedule."""

    tick: int
    phase: Role
    layout: Layout
    mode: SwitchMode


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A deterministic little history of a deployment."""

    asks: tuple[Ask, ...]
    turns: tuple[Turn, ...]
    layouts: tuple[Layout, Layout]
    """Initial layouts of prefill and decode."""
    chunk_tokens: int
    overcommit: float = 1.0
    """Of decode's admission: above 1, sequences are preempted and recomputed."""


@dataclass
class Outcome:
    """What came of a schedule: tokens per request, and the switches that were executed or refused."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs | None]] = field(default_factory=dict)
    """One entry a token."""
    finished: dict[int, str] = field(default_factory=dict)
    switched: list[SwitchedEvent] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


class Pair:
    """A prefill group and a decode group."""

    def __init__(self, prefill: Group, decode: Group) -> None:
        self.prefill, self.decode = prefill, decode

    def run(
        self, schedule: Schedule, *, switching: bool = True, ahead: bool = False, max_ticks: int = 2000
    ) -> Outcome:
        """Play a schedule to its end; afterwards neither group may hold a page."""
        for group, role, layout in (
            (self.prefill, Role.PREFILL, schedule.layouts[0]),
            (self.decode, Role.DECODE, schedule.layouts[1]),
        ):
            group.reset(
                layout,
                SchedulerConfig(
                    role=role,
                    layouts=tuple(Layout),
                    group=GroupId(role.value),
                    chunk_tokens=schedule.chunk_tokens,
                    admission_overcommit=schedule.overcommit,
                    # A page or the weights of a layer at a time: other things happen meanwhile.
                    precopy_bytes_per_step=1,
                ),
            )
        return _Play(self, schedule, switching, ahead).run(max_ticks)


class _Play:
    def __init__(self, pair: Pair, schedule: Schedule, switching: bool, ahead: bool) -> None:
        self._ahead = ahead
        self._groups = {Role.PREFILL: pair.prefill, Role.DECODE: pair.decode}
        self._prefill, self._decode = pair.prefill, pair.decode
        self._schedule = schedule
        self._turns = list(schedule.turns) if switching else []
        self._queue: deque[int] = deque()
        self._grants: dict[int, Grant] = {}
        self._prefill_seq: dict[int, SeqId] = {}
        self._handovers = Handovers(pair.prefill.scheduler, pair.decode.scheduler, self._copy_page)
        self.outcome = Outcome()

    def run(self, max_ticks: int) -> Outcome:
        for tick in range(max_ticks):
            self._arrivals(tick)
            self._reserve()
            self._switches(tick)
            for event in self._handovers.copy():
                self._on_event(Role.DECODE, event)
            for role, group in self._groups.items():
                for event in group.step_ahead() if self._ahead else group.step():
                    self._on_event(role, event)
            self._handovers.order()
            if tick > self._last_tick and not self._turns and not self._busy():
                break
        else:
            raise AssertionError(f"not drained after {max_ticks} ticks")
        self._prefill.seen["early pages"] += self._handovers.early
        for group in self._groups.values():
            group.scheduler.check_integrity()
            audit = group.scheduler.audit()
            assert audit.pages_held == 0, audit
        return self.outcome

    @property
    def _last_tick(self) -> int:
        asks = [max(ask.arrives, ask.cancelled or 0) for ask in self._schedule.asks]
        return max([*asks, *(turn.tick for turn in self._schedule.turns)], default=0)

    def _busy(self) -> bool:
        left = any(group.scheduler.count() for group in self._groups.values())
        return bool(self._queue or self._handovers.open) or left

    def _arrivals(self, tick: int) -> None:
        for index, ask in enumerate(self._schedule.asks):
            if ask.arrives == tick:
                self.outcome.tokens[index] = []
                self._queue.append(index)
            if ask.cancelled == tick:
                self._cancel(index)

    def _cancel(self, index: int) -> None:
        if index in self._queue:
            self._queue.remove(index)
        if index in self._prefill_seq:
            self._prefill.scheduler.cancel(self._prefill_seq[index])
            self._handovers.leave(self._prefill_seq[index])
        if index in self._grants:
            self._decode.scheduler.cancel(self._grants[index].seq)

    def _reserve(self) -> None:
        while self._queue:
            ask = self._schedule.asks[self._queue[0]]
            name = RequestId(str(self._queue[0]))
            grant = self._decode.scheduler.reserve(name, ask.prompt, ask.sampling)
            if grant is None:
                return
            index = self._queue.popleft()
            self._grants[index] = grant
            seq = self._prefill_seq[index] = self._prefill.scheduler.add(name, ask.prompt, ask.sampling)
            self._handovers.add(grant, seq, len(ask.prompt))

    def _switches(self, tick: int) -> None:
        for turn in [turn for turn in self._turns if turn.tick <= tick]:
            scheduler = self._groups[turn.phase].scheduler
            try:
                answer = scheduler.request_switch(turn.layout, turn.mode)
            except Conflict:
                continue  # another one is scheduled: ask again at the next tick
            if isinstance(answer, SwitchDeferred):
                continue
            self._turns.remove(turn)
            if isinstance(answer, Refusal):
                self.outcome.refused.append(answer)

    def _on_event(self, role: Role, event: Event) -> None:
        if isinstance(event, TokenEvent):
            self.outcome.tokens[int(event.request_id)].append(event.token)
            self.outcome.logprobs.setdefault(int(event.request_id), []).append(event.logprobs)
        elif isinstance(event, FinishedEvent) and role is Role.DECODE:
            self.outcome.finished[int(event.request_id)] = event.reason.value
        elif isinstance(event, PrefilledEvent):
            if event.seq in self._handovers.open:
                self._handovers.open[event.seq].prefilled = event
        elif isinstance(event, SwitchedEvent):
            self.outcome.switched.append(event)
        elif isinstance(event, SwitchRefusedEvent):
            self.outcome.refused.append(event.refusal)

    def _copy_page(self, write: HandoffWrite) -> None:
        target = self._decode.page(write.dst, write.dst_slot)
        target.copy_(self._prefill.page(write.src, write.src_slot))


def outputs(events: Sequence[Event]) -> list[int]:
    """Tokens of a single sequence's events."""
    return [event.token for event in events if isinstance(event, TokenEvent)]
