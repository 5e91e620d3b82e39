"""How sequences enter and leave a group: prompts, leases, landings, cancels, releases.

Invariant: each way out frees a sequence's pages exactly once, and never while a step under way or a
writer outside may still touch them.
"""

from collections.abc import Callable

from splash_core.errors import Conflict, InvalidRequest
from splash_core.ids import Incarnation, LeaseId, PageId, RequestId, SeqId
from splash_core.layout.layout import ORDINARY_ONLY
from splash_core.scheduling.admission import Admission
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import Event, FinishedEvent
from splash_core.scheduling.leases import Completion, Grant, LeaseBook, LeaseState, OpenLease
from splash_core.scheduling.limits import check_length
from splash_core.scheduling.outputs import accept_token, length_reached
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.roles import RULES_OF_ROLE
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.scheduling.step import TokenLogprobs
from splash_core.spec.request import SamplingParams
from splash_core.switch.handoff import LandingPage


class Intake:
    """Admits, leases, lands, cancels and releases sequences."""

    def __init__(
        self,
        *,
        roster: Roster,
        residency: Residency,
        admission: Admission,
        config: SchedulerConfig,
        limit: int,
        clock: Callable[[], float],
    ) -> None:
        self._roster = roster
        self._residency = residency
        self._admission = admission
        self._config = config
        self._limit = limit
        self._rules = RULES_OF_ROLE[config.role]
        self._clock = clock
        self._leases = LeaseBook(config.incarnation, residency.table.arena)

    def add(self, request_id: RequestId, prompt: tuple[int, ...], sampling: SamplingParams) -> SeqId:
        """Queue a prompt to be computed here."""
        if not self._rules.takes_prompts:
            raise InvalidRequest(f"a {self._config.role} group takes no prompts; reserve pages in it instead")
        sequence = self._new(request_id, prompt, sampling)
        self._roster.put(sequence)
        return sequence.seq

    def reserve(
        self, request_id: RequestId, prompt: tuple[int, ...], sampling: SamplingParams
    ) -> Grant | None:
        """Lease pages for a prompt that is computed elsewhere; None when there is no room now."""
        if self._rules.takes_prompts:
            raise InvalidRequest(f"a {self._config.role} group computes prompts itself; add them instead")
        if sampling.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1 to decode, got 0", param="max_tokens")
        sequence = self._new(request_id, prompt, sampling)
        # Preempted sequences come first, but not probes: a lease must not take the room that they wait for.
        preempted = [waiting.sampling.purpose for waiting in self._roster.within(SeqState.WAITING)]
        if preempted and min(preempted) <= sampling.purpose:
            return None
        if len(self._roster.active()) >= self._config.max_running:
            return None
        owner = self._admission.choose_owner(sequence, landing=True)
        if owner is None:
            return None
        sequence.owner = owner
        sequence.state = SeqState.LEASED
        # Scores of the prompt are the prefill group's to tell.
        sequence.prompt_reported = True
        self._roster.put(sequence)
        return self._grant(sequence)

    def claim(self, lease: LeaseId, *, attempt: int, incarnation: Incarnation, writer: str) -> None:
        """A writer is about to write the pages of a lease."""
        self._leases.claim(lease, attempt=attempt, incarnation=incarnation, writer=writer)

    def abandon(self, lease: LeaseId, *, attempt: int, incarnation: Incarnation, writer: str) -> None:
        """A writer has stopped for good."""
        if self._leases.abandon(lease, attempt=attempt, incarnation=incarnation, writer=writer):
            self._unpin(self._leases.forget(lease))

    def writer_gone(self, writer: str) -> tuple[LeaseId, ...]:
        """It is proven that a writer writes no more: as if it had abandoned all its leases."""
        held = self._leases.held_by(writer)
        for lease in held:
            if self._leases.orphan(lease):
                self._unpin(self._leases.forget(lease))
        return held

    def landed(self, completion: Completion, first_logprobs: TokenLogprobs | None) -> tuple[Event, ...]:
        """All pages of a lease are written; the first token is drawn."""
        if self._leases.is_repeat(completion):
            return ()
        if self._leases.check(completion) is LeaseState.QUARANTINED:
            self._unpin(self._leases.forget(completion.lease))
            raise Conflict(f"lease {completion.lease} has ended: its request was cancelled")
        pages = self._leases.pages(completion.lease)
        sequence = self._roster.get(self._leases.complete(completion))
        for page in pages:
            self._residency.table.unpin(page)
        sequence.state = SeqState.LANDED
        sequence.cached = sequence.num_prompt
        told = accept_token(sequence, completion.first_token, first_logprobs)
        end = told if isinstance(told, FinishedEvent) else length_reached(sequence)
        if end is None:
            return (told,)
        # Its pages are in no step yet, so they come back at once.
        self.drop(sequence)
        return (told,) if end is told else (told, end)

    def cancel(self, sequence: Sequence) -> None:
        """Drop a sequence that no step under way may touch. Pages that a writer may reach are quarantined."""
        if sequence.state is SeqState.LEASED:
            lease = self._leases.find(sequence.seq)
            assert lease is not None  # a leased sequence has an open lease
            pages = self._leases.pages(lease)
            if self._leases.end(lease):
                for page in pages:
                    self._residency.table.unpin(page)
            else:
                self._admission.quarantine.extend(pages)
        elif sequence.state is SeqState.HANDOFF:
            self._unpin_held(sequence)
        self.drop(sequence)

    def release(self, sequence: Sequence) -> None:
        """The push of a prefilled sequence is acknowledged, or given up."""
        self._unpin_held(sequence)
        self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Free what an ended sequence holds and forget it."""
        self._residency.drop_pages(sequence)
        self._roster.remove(sequence.seq)

    def hold(self, sequence: Sequence) -> None:
        """A prompt is computed and will be pushed: pin its pages."""
        for page in sequence.pages:
            self._residency.table.pin(page)
        sequence.state = SeqState.HANDOFF
        # No rank runs it again: pushes name slots.
        self._residency.forget_mirror(sequence)

    @property
    def writers(self) -> frozenset[str]:
        """Those that have claimed leases and may write them."""
        return self._leases.writers

    @property
    def landing_bytes(self) -> int:
        """Bytes that writers outside have said they will write, and have not."""
        return self._leases.claimed_pages * self._residency.table.arena.slot_bytes

    def opened(self) -> tuple[OpenLease, ...]:
        """Open leases, for audits."""
        return self._leases.opened(self._clock())

    def _new(self, request_id: RequestId, prompt: tuple[int, ...], sampling: SamplingParams) -> Sequence:
        if not prompt:
            raise InvalidRequest("the prompt is empty; send at least one token", param="prompt")
        held = self._rules.held_tokens(len(prompt), sampling)
        check_length(len(prompt), held, self._limit)
        # A refused lease keeps the id, and with it the rotation, for the next attempt.
        seq = self._roster.next_id
        return Sequence(
            seq=seq,
            request_id=request_id,
            sampling=sampling,
            tokens=list(prompt),
            num_prompt=len(prompt),
            held_tokens=held,
            max_drawn=self._rules.max_drawn(sampling),
            rotation=seq % self._residency.num_ranks,
            since=self._clock(),
        )

    def _grant(self, sequence: Sequence) -> Grant:
        table = self._residency.table
        placement = self._admission.landing_placement(sequence.owner, sequence.rotation)
        written = self._residency.pages_for(sequence.num_prompt)
        landing: list[LandingPage] = []
        # The first row may open a page that nobody writes from outside; it is held but not granted.
        for index in range(self._residency.pages_for(self._admission.first_tokens(sequence))):
            page = table.new_page(placement.ranks_of_page(index), lent=ORDINARY_ONLY)
            assert page is not None  # admission has counted free ordinary slots
            table.pin(page)
            sequence.pages.append(page)
            if index < written:
                landing.extend(LandingPage(index, copy.rank, copy.slot) for copy in table.copies(page))
        grant = Grant(
            lease=self._leases.new_id(),
            seq=sequence.seq,
            attempt=1,
            incarnation=self._config.incarnation,
            pages=tuple(landing),
        )
        self._leases.grant(
            grant,
            request_id=sequence.request_id,
            num_tokens=sequence.num_prompt,
            pages=tuple(sequence.pages),
            now=self._clock(),
        )
        return grant

    def _unpin(self, pages: tuple[PageId, ...]) -> None:
        """Quarantined pages come back."""
        for page in pages:
            self._admission.quarantine.remove(page)
            self._residency.table.unpin(page)

    def _unpin_held(self, sequence: Sequence) -> None:
        for page in sequence.pages:
            self._residency.table.unpin(page)
