"""The leader's state machine of one worker group: requests in, step plans out, results in, events out.

A facade: it keeps no rules of its own but the order in which its parts act. Pure and synchronous: the
caller sends what `next_plan` gives and brings results to `complete`, in the same order; it may be one step
ahead. Every other method may be called at any time between.
Invariant (`check_integrity`): every page has exactly one user, in a state that may hold it; what a step
under way may touch is given to nobody outside before the step has ended.
"""

from collections.abc import Callable, Mapping, Sequence

from splash_core.errors import Conflict, InvariantBroken
from splash_core.ids import Epoch, Incarnation, LeaseId, PageId, RequestId, SeqId
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageCopy
from splash_core.layout.slots import ArenaMap
from splash_core.policy.snapshot import Snapshot, WaitingSequence
from splash_core.scheduling.assembly import assemble
from splash_core.scheduling.attention_choice import AttentionChooser, FewestNumbers
from splash_core.scheduling.audit import GroupAuditData, check_integrity
from splash_core.scheduling.batching import SequenceRows
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import Event, SwitchDeferred, SwitchedEvent
from splash_core.scheduling.leases import Completion, Grant
from splash_core.scheduling.load_views import KvTokens
from splash_core.scheduling.precopy_pace import LinkView
from splash_core.scheduling.pushes import PushBook
from splash_core.scheduling.sequence import SeqState
from splash_core.scheduling.step import StepPlan, StepResult, TokenLogprobs
from splash_core.scheduling.switching import Boundary
from splash_core.scheduling.under_way import MOST_UNDER_WAY, SentStep, StepsUnderWay
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Refusal, SwitchMode


class GroupScheduler:
    """All decisions of one group's leader.

    Args:
        spec: the model; `arena`: the slot map of each rank.
        layout: the layout that the ranks start in.
        config: settings.
        clock: seconds, monotonic; used for ages in audits and snapshots only.
        infeasible: why each layout that `config.layouts` leaves out is not feasible.
        chooser: how steps attend; without one, with the fewest numbers.
    """

    def __init__(
        self,
        *,
        spec: ModelSpec,
        arena: ArenaMap,
        layout: Layout,
        config: SchedulerConfig,
        clock: Callable[[], float],
        infeasible: Mapping[Layout, str] | None = None,
        chooser: AttentionChooser | None = None,
    ) -> None:
        if layout not in config.layouts:
            raise Conflict(f"the group starts in {layout}, which is not among its layouts {config.layouts}")
        attends = chooser or FewestNumbers(spec)
        self._parts = assemble(
            spec=spec, arena=arena, layout=layout, config=config, clock=clock, chooser=attends
        )
        self._clock = clock
        self._infeasible = infeasible or {}
        self._under_way = StepsUnderWay()
        self._events: list[Event] = []

    # ------------------------------------------------------------------------------ requests

    @property
    def max_request_tokens(self) -> int:
        """Most tokens, prompt and output, of one request, in whatever layout the group may run."""
        return self._parts.limit

    def add(self, request_id: RequestId, prompt: Sequence[int], sampling: SamplingParams) -> SeqId:
        """Queue a prompt (prefill and combined groups).

        Raises `ContextTooLong` where it could never fit, `InvalidRequest` where it is empty, or in decode.
        """
        return self._parts.intake.add(request_id, tuple(prompt), sampling)

    def reserve(self, request_id: RequestId, prompt: Sequence[int], sampling: SamplingParams) -> Grant | None:
        """Lease pages for a prompt that is computed elsewhere (decode groups); None: no room now.

        Raises as `add`, and `InvalidRequest` where max_tokens is 0 or this is not a decode group.
        """
        if self._under_way.moving and not self._parts.residency.vacated_rest:
            return None
        return self._parts.intake.reserve(request_id, tuple(prompt), sampling)

    def claim(self, lease: LeaseId, *, attempt: int, incarnation: Incarnation, writer: str) -> None:
        """A writer is about to write the pages of a lease; idempotent. Raises `Conflict`."""
        self._parts.intake.claim(lease, attempt=attempt, incarnation=incarnation, writer=writer)

    def abandon(self, lease: LeaseId, *, attempt: int, incarnation: Incarnation, writer: str) -> None:
        """The writer has stopped for good; idempotent. Raises `Conflict`, as `claim` does."""
        self._parts.intake.abandon(lease, attempt=attempt, incarnation=incarnation, writer=writer)

    def writer_gone(self, writer: str) -> tuple[LeaseId, ...]:
        """It is proven that a writer writes no more; returns the leases that it had claimed."""
        return self._parts.intake.writer_gone(writer)

    @property
    def writers(self) -> frozenset[str]:
        """Those that have claimed leases and may write them."""
        return self._parts.intake.writers

    def landed(
        self, completion: Completion, *, first_logprobs: TokenLogprobs | None = None
    ) -> tuple[Event, ...]:
        """All pages of a lease are written (again: no effect). Returns the first token, and an end with it.

        Raises `Conflict`: a field differs from the lease (named), or the lease has ended.
        """
        return self._parts.intake.landed(completion, first_logprobs)

    def cancel(self, seq: SeqId) -> None:
        """The client has gone, at any point. Idempotent."""
        sequence = self._parts.roster.find(seq)
        if sequence is None:
            return
        if not self._under_way or sequence.state is SeqState.LEASED:
            self._parts.intake.cancel(sequence)
        elif sequence.ends_with is None:
            sequence.ends_with = self._under_way.last

    def release(self, seq: SeqId) -> None:
        """The pages of a prefilled sequence are pushed, or will not be: free them. Idempotent."""
        sequence = self._parts.roster.find(seq)
        if sequence is not None and sequence.state is SeqState.HANDOFF:
            self._parts.intake.release(sequence)

    @property
    def pushes(self) -> PushBook:
        """What may be pushed out of this group, and what is under way."""
        return self._parts.pushes

    def copies(self, seq: SeqId) -> tuple[tuple[PageCopy, ...], ...]:
        """Where each page of a sequence is: the source of a handoff."""
        table = self._parts.residency.table
        return tuple(table.copies(page) for page in self._parts.roster.get(seq).pages)

    def pages(self, seq: SeqId) -> tuple[PageId, ...]:
        """The pages of a sequence, in order; copies of a page may move, its id stays."""
        return tuple(self._parts.roster.get(seq).pages)

    # -------------------------------------------------------------------------------- steps

    def request_switch(
        self, layout: Layout, mode: SwitchMode = SwitchMode.OVERLAPPED
    ) -> SwitchedEvent | SwitchDeferred | Refusal | None:
        """Switch at the next step boundary; in mode `precopied` once most of it has been copied ahead.

        That is planned then, so its refusal is an event; the present layout calls such a switch off.

        Returns:
            None when scheduled: a `SwitchedEvent` (or, if things change, a `SwitchRefusedEvent`) follows. A
            `SwitchedEvent` at once when the group runs in `layout`. `SwitchDeferred`: ask again later.

        Raises:
            Conflict: the layout is not one of the group's, or a switch to another one is scheduled.
        """
        if self._under_way.switches_to(layout) and not self._parts.switcher.pending:
            return None
        return self._parts.switcher.request(layout, mode)

    def limit_chunk(self, rows: int | None) -> None:
        """Take so many rows in steps that compute prompts from now on, at most the configured ones (None)."""
        self._parts.budget.limit(rows)

    def leave_room(self, link: LinkView, *, pushing_bytes: int) -> None:
        """Before a step is planned: copies ahead give way to handoffs."""
        self._parts.switcher.ahead.leave_room(link, pushing_bytes + self._parts.intake.landing_bytes)

    def next_plan(self) -> StepPlan | None:
        """The next step; None when there is nothing to run now.

        With a step under way also where what comes next needs its outcome, or takes away what it may touch.

        Raises:
            InvariantBroken: two steps are under way.
        """
        if len(self._under_way) == MOST_UNDER_WAY:
            raise InvariantBroken(f"step {self._under_way.oldest().plan.step} is still under way")
        layout, epoch = self.layout, self.epoch
        found = self._boundary_ahead() if self._under_way else self._boundary()
        if found is None:
            return None
        boundary, rows = found
        # After the rows have their pages: from here on nothing frees a page before the step has ended.
        ahead = self._parts.switcher.ahead.next_step()
        if not rows and boundary.manifest is None and ahead is None:
            return None
        plan = self._parts.writer.write(rows, boundary, ahead, switch_near=self._parts.switcher.copying)
        self._parts.pushes.planned(plan)
        self._under_way.send(SentStep(plan, rows, layout, epoch, boundary.ahead))
        return plan

    def _boundary(self) -> tuple[Boundary, tuple[SequenceRows, ...]]:
        boundary = self._parts.switcher.at_boundary()
        if boundary.refused is not None:
            self._events.append(boundary.refused)
        rows = self._parts.batcher.fill()
        if boundary.manifest is None:
            boundary = self._parts.switcher.make_way()
        return boundary, rows

    def _boundary_ahead(self) -> tuple[Boundary, tuple[SequenceRows, ...]] | None:
        """A boundary beside a step under way, at which only rows may be chosen; None: wait for the step."""
        switcher = self._parts.switcher
        if switcher.waits_for_steps:
            return None
        boundary = switcher.at_boundary()
        rows = self._parts.batcher.fill_ahead()
        switcher.pass_by()
        return None if rows is None else (boundary, rows)

    def tidy(self) -> None:
        """Book-keeping that the plan need not wait for; to be called once the ranks have it. Idempotent."""
        self._parts.residency.tidy(moving=self._under_way.moving)

    def complete(self, results: Sequence[StepResult]) -> tuple[Event, ...]:
        """Apply what all ranks report of the oldest step under way.

        Raises:
            InvariantBroken: no step is, the results do not belong to it, or they are incomplete.
        """
        step, last = self._under_way.oldest(), self._under_way.last
        self.tidy()
        events = self._parts.retirement.retire(
            step.plan, step.rows, results, num_ranks=self._parts.residency.num_ranks, last=last
        )
        self._under_way.end()
        self.tidy()
        self._parts.switcher.ahead.executed(results)
        switched = step.switched(results)
        return (*self.take_events(), *(() if switched is None else (switched,)), *events)

    def take_events(self) -> tuple[Event, ...]:
        """Events that no step carries (a switch refused at the boundary); `complete` returns them too."""
        events = tuple(self._events)
        self._events.clear()
        return events

    @property
    def layout(self) -> Layout:
        """The layout of the step under way, or of the next one."""
        return self._parts.present.layout

    @property
    def epoch(self) -> Epoch:
        """The layout epoch."""
        return self._parts.present.epoch

    @property
    def copying_ahead(self) -> bool:
        """True while a switch in mode `precopied` is on its way."""
        return self._parts.switcher.copying

    @property
    def num_steps(self) -> int:
        """Steps planned so far."""
        return self._parts.writer.num_steps

    @property
    def in_flight(self) -> bool:
        """True while the ranks have a step to report."""
        return len(self._under_way) > 0

    def count(self, *states: SeqState) -> int:
        """Live sequences in any of the states; all when none is named."""
        return len(self._parts.roster.within(*states)) if states else len(self._parts.roster)

    def snapshot(self, *, queued: Sequence[WaitingSequence] = ()) -> Snapshot:
        """What a layout policy may see; `queued` are requests that wait outside the scheduler."""
        return self._parts.views.snapshot(
            time_s=self._clock(),
            queued=queued,
            infeasible=self._infeasible,
            switch_pending=self._parts.switcher.pending,
            landing_bytes=self._parts.intake.landing_bytes,
        )

    def audit(self, *, every_page: bool = False) -> GroupAuditData:
        """Every slot, lease and push of the group; one entry a page, too, if asked to."""
        leases, pushes = self._parts.intake.opened(), self._parts.pushes.opened()
        return self._parts.views.audit(leases, pushes, now=self._clock(), every_page=every_page)

    def kv_tokens(self) -> KvTokens:
        """Tokens used, offered and promised."""
        return self._parts.views.kv_tokens()

    def check_integrity(self) -> None:
        """Prove the invariants of the group; raises `InvariantBroken`."""
        parts = self._parts
        check_integrity(parts.roster, parts.residency, parts.admission.quarantine, parts.pushes)
        self._under_way.check_integrity(parts.roster, page_size=parts.residency.table.arena.page_size)
