"""A decode group without processes: the real scheduler, with histories put in place and tokens made up.

Steps can be planned far ahead of their execution, since no plan depends on a drawn token: every token is a
function of its request and position. Pure: the same calls give the same plans on every rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from splash_core.errors import Infeasible
from splash_core.ids import PageId, RankId, RequestId, SeqId
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageCopy
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import Event, SwitchedEvent, SwitchRefusedEvent
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.leases import Completion, Grant
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.scheduling.step import SampledToken, StepPlan, StepResult
from splash_core.scheduling.written import Written
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Refusal, SwitchMode

_WRITER = "bench"
_MOST_STEPS = 100_000
"""Of one switch: it copies ahead no longer."""
_STRIDE_SEQ, _STRIDE_POSITION = 7919, 104_729


def no_churn(step: int) -> None:
    """Requests stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPlans:
    """Steps of one switch."""

    ahead: tuple[StepPlan, ...]
    """Ordinary steps in the old layout that copy ahead, if the mode does."""
    switching: StepPlan
    fallback: str
    """Why it was not executed as asked for; empty if it was."""


class DecodeGroup:
    """Requests that decode under the leader's own scheduler.

    Args:
        spec: the model.
        arena: the slot map of each rank.
        layout: the layout that the ranks start in.
        config: of the scheduler; its role must be decode.
    """

    def __init__(self, spec: ModelSpec, arena: ArenaMap, layout: Layout, config: SchedulerConfig) -> None:
        assert config.role is Role.DECODE
        self._spec = spec
        self._arena = arena
        self._config = config
        self._scheduler = GroupScheduler(
            spec=spec, arena=arena, layout=layout, config=config, clock=lambda: 0.0
        )
        self._seqs: list[SeqId] = []
        self._ending: set[SeqId] = set()
        """Requests whose next token is the one that ends them."""
        self._switched: SwitchedEvent | None = None
        """The last switch."""
        self._num_requests = 0

    @property
    def layout(self) -> Layout:
        """The layout of the last step planned."""
        return self._scheduler.layout

    @property
    def seqs(self) -> tuple[SeqId, ...]:
        """Requests that are there, oldest first."""
        return tuple(self._seqs)

    @property
    def live_pages(self) -> dict[PageId, tuple[PageCopy, ...]]:
        """Copies of every page that a request has."""
        scheduler = self._scheduler
        return {
            page: copies
            for seq in self._seqs
            for page, copies in zip(scheduler.pages(seq), scheduler.copies(seq), strict=True)
        }

    @property
    def histories(self) -> dict[SeqId, tuple[tuple[PageCopy, ...], ...]]:
        """Copies of each page of each request in place."""
        return {seq: self._scheduler.copies(seq) for seq in self._seqs}

    def place(self, batch: int, context: int, *, output: int) -> tuple[StepPlan, ...]:
        """Requests with `context` cached tokens in place, as after their handoff.

        Args:
            batch: requests.
            context: cached tokens of each.
            output: tokens that each may generate; room is kept for them.

        Returns:
            Steps to execute: they bring histories to where the layout wants them, and decode.

        Raises:
            Infeasible: they do not fit; none is in place then.
        """
        grants: list[Grant] = []
        for index in range(batch):
            grant = self._reserve(context, output)
            if grant is None:
                self.clear()
                raise Infeasible(
                    f"{self.layout}: no room for request {index + 1} of {batch} with {context} tokens and "
                    f"{output} to come"
                )
            grants.append(grant)
        for grant in grants:
            self._land(grant, context)
        plans: list[StepPlan] = []
        while self._scheduler.count(SeqState.RUNNING) < batch:
            plans.append(self._next())
        return tuple(plans)

    def clear(self) -> None:
        """Cancel all requests; nothing is under way, so their pages come back at once."""
        for seq in self.seqs:
            self.cancel(seq)

    def cancel(self, seq: SeqId) -> None:
        """A request's client goes away, between two steps."""
        self._scheduler.cancel(seq)
        self._seqs.remove(seq)
        self._ending.discard(seq)

    def finish(self, seq: SeqId) -> None:
        """A request ends with its next token."""
        self._ending.add(seq)
        self._seqs.remove(seq)

    def admit(self, context: int, *, output: int) -> bool:
        """One more request, whose history lands at once; False, and no change, if there is no room."""
        grant = self._reserve(context, output)
        if grant is not None:
            self._land(grant, context)
        return grant is not None

    def steps(self, count: int) -> tuple[StepPlan, ...]:
        """Ordinary steps: one row of each request."""
        return tuple(self._next() for _ in range(count))

    def switch(
        self, layout: Layout, mode: SwitchMode, between: Callable[[int], None] = no_churn
    ) -> SwitchPlans:
        """The steps of a switch.

        Args:
            layout: the destination.
            mode: how to execute it.
            between: called before each step, with the number of steps so far.

        Raises:
            Infeasible: the scheduler refuses; with its numbers.
        """
        answer = self._scheduler.request_switch(layout, mode)
        if isinstance(answer, Refusal):
            raise Infeasible(answer.reason)
        epoch = self._scheduler.epoch
        plans: list[StepPlan] = []
        while self._scheduler.epoch == epoch:
            between(len(plans))
            plans.append(self._next())
            assert len(plans) < _MOST_STEPS, "a switch that never comes"
        *ahead, switching = plans
        assert self._switched is not None
        return SwitchPlans(ahead=tuple(ahead), switching=switching, fallback=self._switched.fallback)

    def _reserve(self, context: int, output: int) -> Grant | None:
        number = self._num_requests + 1
        # As `_token`, of half a million positions a window.
        first, modulus = number * _STRIDE_SEQ, self._stop_token
        prompt = [(first + position * _STRIDE_POSITION) % modulus for position in range(context)]
        sampling = SamplingParams(temperature=0.0, max_tokens=output, stop_token_ids=(self._stop_token,))
        grant = self._scheduler.reserve(RequestId(f"bench-{number}"), prompt, sampling)
        if grant is not None:
            self._num_requests = number
            self._seqs.append(grant.seq)
        return grant

    def _land(self, grant: Grant, context: int) -> None:
        keys = {"attempt": grant.attempt, "incarnation": grant.incarnation, "writer": _WRITER}
        self._scheduler.claim(grant.lease, **keys)
        self._scheduler.landed(
            Completion(
                lease=grant.lease,
                num_tokens=context,
                checksum=grant.checksum,
                written=Written.whole(-(-context // self._arena.page_size), self._arena),
                first_token=self._token(grant.seq, context),
                first_position=context,
                **keys,
            )
        )

    def _next(self) -> StepPlan:
        plan = self._scheduler.next_plan()
        if plan is None:
            self._note(self._scheduler.take_events())
            raise Infeasible(f"{self.layout}: the scheduler has nothing to run; histories may not fit")
        drawn = tuple(
            SampledToken(seq=step.seq, token=self._drawn(step.seq, step.end))
            for step in plan.sequences
            if step.sample
        )
        results = [
            StepResult(step=plan.step, rank=RankId(rank), tokens=drawn if rank == 0 else ())
            for rank in range(self._arena.num_ranks)
        ]
        self._note(self._scheduler.complete(results))
        return plan

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, SwitchRefusedEvent):
                raise Infeasible(event.refusal.reason)
            if isinstance(event, SwitchedEvent):
                self._switched = event

    @property
    def _stop_token(self) -> int:
        """One that no text has."""
        return self._spec.vocab - 1

    def _drawn(self, seq: SeqId, position: int) -> int:
        if seq not in self._ending:
            return self._token(seq, position)
        self._ending.remove(seq)
        return self._stop_token

    def _token(self, seq: int, position: int) -> int:
        return (seq * _STRIDE_SEQ + position * _STRIDE_POSITION) % self._stop_token
