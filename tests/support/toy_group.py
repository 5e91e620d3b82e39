"""A scheduler and its symbolic ranks, with what tests compare: tokens per request, ends, switches."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from splash_core.ids import Incarnation, RequestId, SeqId
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageCopy, PageTable
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.attention_choice import AttentionChooser
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import (
    Event,
    FinishedEvent,
    PrefilledEvent,
    SwitchedEvent,
    SwitchRefusedEvent,
    TokenEvent,
)
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.leases import Completion, Grant, handoff_checksum
from splash_core.scheduling.roles import Role
from splash_core.scheduling.step import StepPlan
from splash_core.scheduling.under_way import MOST_UNDER_WAY
from splash_core.scheduling.written import Written
from splash_core.spec.model import Family, ModelSpec, RopeKind, RopeSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.handoff import LandingPage
from tests.support.fake_ranks import FakeRanks, digests, expected_output, token_after
from tests.support.manifest_simulator import toy_arena

SPEC = ModelSpec(
    name="toy",
    family=Family.V2,
    layers=2,
    hidden=64,
    heads=4,
    q_lora_rank=None,
    kv_lora_rank=16,
    nope_dim=8,
    rope_dim=4,
    v_dim=8,
    vocab=11,
    dense_intermediate=64,
    moe=None,
    rms_eps=1e-6,
    rope=RopeSpec(kind=RopeKind.DEFAULT, theta=10000.0),
    attention_bias=False,
    tie_embeddings=False,
    max_positions=4096,
    eos_token_ids=(2,),
)
INCARNATION = Incarnation("life-1")


def arena_of(*, num_ranks: int, ordinary: int, borrowed: int = 0, page_size: int = 2) -> ArenaMap:
    arena = toy_arena(num_ranks=num_ranks, num_layers=2, ordinary=ordinary, borrowed=borrowed)
    return replace(arena, page_size=page_size)


@dataclass
class Request:
    prompt: tuple[int, ...]
    sampling: SamplingParams
    told: list[int] = field(default_factory=list)
    prefilled: PrefilledEvent | None = None
    finished: FinishedEvent | None = None
    cancelled: bool = False
    released: bool = False

    def check(self) -> None:
        """What was told so far is what an unswitched run tells."""
        output, stop = expected_output(self.prompt, self.sampling)
        assert self.told == output[: len(self.told)]
        if self.finished is None:
            return
        assert self.told == output
        assert self.finished.stop_token == stop
        assert self.finished.reason == ("length" if stop is None else "stop")
        assert self.finished.num_generated == len(output) + (stop is not None)


@dataclass(frozen=True)
class Sent:
    """A step under way, which the ranks have not begun with yet: the worst that can happen to it."""

    plan: StepPlan
    touched: tuple[PageCopy, ...]
    """What its rows and its copies ahead may read or write."""


class ToyGroup:
    """One group on symbols. Checks integrity after every call."""

    def __init__(
        self,
        *,
        role: Role = Role.COMBINED,
        layout: Layout = Layout.DP,
        arena: ArenaMap | None = None,
        chooser: AttentionChooser | None = None,
        **settings: object,
    ) -> None:
        self.arena = arena or arena_of(num_ranks=2, ordinary=16)
        self.clock = 0.0
        settings.setdefault("incarnation", INCARNATION)
        settings.setdefault("layouts", tuple(Layout))
        self.scheduler = GroupScheduler(
            spec=SPEC,
            arena=self.arena,
            layout=layout,
            config=SchedulerConfig(role=role, **settings),  # type: ignore[arg-type]
            clock=lambda: self.clock,
            chooser=chooser,
        )
        self.ranks = FakeRanks(self.arena, layout)
        self.requests: dict[SeqId, Request] = {}
        self.switched: list[SwitchedEvent] = []
        self.refused: list[SwitchRefusedEvent] = []
        self.sent: deque[Sent] = deque()
        self.plans: list[StepPlan] = []
        self.watched = True
        """Check integrity between a plan and its results too."""
        self.tidies = True
        """Tidy up once a step is sent, as a leader does, but at some moment after that."""

    @property
    def plan(self) -> StepPlan | None:
        """The oldest step under way."""
        return self.sent[0].plan if self.sent else None

    @property
    def table(self) -> PageTable:
        """The scheduler's page table, to look at."""
        return self.scheduler._parts.residency.table

    def add(self, prompt: Sequence[int], sampling: SamplingParams) -> SeqId:
        seq = self.scheduler.add(RequestId(f"r{len(self.requests)}"), prompt, sampling)
        self.requests[seq] = Request(tuple(prompt), sampling)
        self.scheduler.check_integrity()
        return seq

    def reserve(self, prompt: Sequence[int], sampling: SamplingParams) -> Grant | None:
        grant = self.scheduler.reserve(RequestId(f"r{len(self.requests)}"), prompt, sampling)
        if grant is not None:
            self.requests[grant.seq] = Request(tuple(prompt), sampling)
            granted = {(page.rank, page.slot) for page in grant.pages}
            for sent in self.sent:
                moves = () if sent.plan.manifest is None else sent.plan.manifest.moves
                touched = {(copy.rank, copy.slot) for copy in sent.touched}
                touched |= {(move.src, move.src_slot) for move in moves}
                assert not touched & granted, "a lease on what a step under way touches"
        self.scheduler.check_integrity()
        return grant

    def write(self, grant: Grant, pages: Sequence[LandingPage] | None = None) -> None:
        """A writer outside fills (some of) a lease's pages, which must be fenced as long as it may."""
        assert grant.lease in {lease.lease for lease in self.scheduler.audit().leases}
        chain = digests(self.requests[grant.seq].prompt)
        size = self.arena.page_size
        for page in grant.pages if pages is None else pages:
            first = page.index * size
            self.ranks.write_page(page.rank, page.slot, first, chain[first : first + size])

    def completion(self, grant: Grant, **changes: object) -> Completion:
        prompt = self.requests[grant.seq].prompt
        fields: dict[str, object] = {
            "lease": grant.lease,
            "attempt": grant.attempt,
            "incarnation": grant.incarnation,
            "writer": "writer",
            "num_tokens": len(prompt),
            "checksum": handoff_checksum(grant.pages),
            "written": Written.whole(len(grant.pages), self.arena),
            "first_position": len(prompt),
            "first_token": token_after(digests(prompt)[-1]),
        }
        return Completion(**{**fields, **changes})  # type: ignore[arg-type]

    def claim(self, grant: Grant, writer: str = "writer") -> None:
        self.scheduler.claim(grant.lease, attempt=grant.attempt, incarnation=grant.incarnation, writer=writer)

    def land(self, grant: Grant, writer: str = "writer") -> None:
        self.take(self.scheduler.landed(self.completion(grant, writer=writer)))

    def cancel(self, seq: SeqId) -> None:
        self.requests[seq].cancelled = True
        self.scheduler.cancel(seq)
        self.scheduler.check_integrity()

    def begin(self) -> bool:
        """Plan a step, perhaps beside one under way; False when there is nothing to run (yet)."""
        ended = {
            seq
            for seq, request in self.requests.items()
            if request.finished or request.cancelled or request.released
        }
        plan = self.scheduler.next_plan()
        if self.watched:
            self.scheduler.check_integrity()
        if plan is None:
            self.take(self.scheduler.take_events())
            return False
        self.plans.append(plan)
        if self.sent:
            assert plan.manifest is None, "a manifest ahead of a step's end"
        else:
            gone = self.ranks.mirrors.keys() & ended
            assert gone <= set(plan.finished), "ranks keep sequences that have ended"
        self.sent.append(Sent(plan, self._touched(plan)))
        if self.tidies:
            self.scheduler.tidy()
            self.scheduler.check_integrity()
        return True

    def _touched(self, plan: StepPlan) -> tuple[PageCopy, ...]:
        table, roster = self.table, self.scheduler._parts.roster
        pages = [page for rows in plan.sequences for page in roster.get(rows.seq).pages]
        moves = () if plan.precopy is None else plan.precopy.moves
        copies = [copy for page in pages for copy in table.copies(page)]
        copies += [
            PageCopy(move.dst, move.dst_slot, table.pools[move.dst].generation(move.dst_slot))
            for move in moves
        ]
        return (*copies, *(copy for move in moves for copy in table.copies(move.page)))

    def end(self) -> tuple[Event, ...]:
        """Run the oldest step under way and complete it."""
        sent = self.sent.popleft()
        stale = [copy for copy in sent.touched if not self.table.is_current(copy)]
        assert not stale, "what a step under way touches has changed hands"
        results = self.ranks.step(sent.plan)
        events = self.scheduler.complete(results)
        self.take(events)
        return events

    def step(self) -> tuple[Event, ...] | None:
        return self.end() if self.begin() else None

    def step_ahead(self) -> tuple[Event, ...] | None:
        """As a leader that is one step ahead: fill up, then wait for the oldest step."""
        while len(self.sent) < MOST_UNDER_WAY and self.begin():
            pass
        return self.end() if self.sent else None

    def run(self, limit: int = 3000, *, ahead: bool = False) -> None:
        """Steps until nothing is left to run."""
        for _ in range(limit):
            if (self.step_ahead() if ahead else self.step()) is None:
                return
        raise AssertionError(f"still busy after {limit} steps: livelock")

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, SwitchedEvent):
                self.switched.append(event)
            elif isinstance(event, SwitchRefusedEvent):
                self.refused.append(event)
            else:
                self._take_of_request(event)
        self.scheduler.check_integrity()

    def _take_of_request(self, event: TokenEvent | FinishedEvent | PrefilledEvent) -> None:
        request = self.requests[event.seq]
        assert request.finished is None, "an event after the end"
        assert not request.cancelled, "an event after a cancel"
        if isinstance(event, TokenEvent):
            assert event.index == len(request.told)
            request.told.append(event.token)
        elif isinstance(event, PrefilledEvent):
            assert request.prefilled is None, "prefilled twice"
            request.prefilled = event
        else:
            request.finished = event

    def assert_empty(self) -> None:
        """Nothing is held after a drain."""
        audit = self.scheduler.audit()
        assert audit.pages_held == 0
        assert audit.leases == ()
        assert self.scheduler.count() == 0
        for rank in audit.ranks:
            assert rank.kv == rank.quarantined == rank.precopied == 0
            assert rank.slots == rank.free + rank.weights
        assert self.scheduler.kv_tokens().used == 0
