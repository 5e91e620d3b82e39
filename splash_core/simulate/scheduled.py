"""A group run by the product's own `GroupScheduler`, page by page and step by step, on symbolic tokens.

The reference for the machine that counts: slow, and right by construction.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from splash_core.errors import Infeasible
from splash_core.ids import RankId, RequestId, SeqId
from splash_core.layout.layout import RULES, KvHistory, Layout
from splash_core.policy.snapshot import Snapshot, WaitingSequence
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import FinishedEvent, PrefilledEvent, SwitchDeferred
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.leases import Completion, Grant
from splash_core.scheduling.precopy_pace import LinkView
from splash_core.scheduling.step import SampledToken, SequenceStep, StepPlan, StepResult
from splash_core.scheduling.written import Written
from splash_core.simulate.ahead import Units
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.machine import BatchRow, Ended, Promised, Rest, StepRun
from splash_core.simulate.workload import Request
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Refusal, SwitchManifest, SwitchMode

_WORD, _STOP = 1, 2
_WRITER = "prefill"


class ScheduledMachine:
    """One group. See `Machine`."""

    def __init__(
        self, fleet: Fleet, config: SchedulerConfig, layout: Layout, *, clock: Callable[[], float]
    ) -> None:
        if fleet.arena is None:
            raise Infeasible("the product's scheduler needs an arena", nearest="a fleet with `arena`")
        self._arena, self._model = fleet.arena, fleet.model
        self._config = config
        self._scheduler = GroupScheduler(
            spec=fleet.model.spec,
            arena=fleet.arena,
            layout=layout,
            config=config,
            clock=clock,
            infeasible=fleet.infeasible,
        )
        self._requests: dict[SeqId, Request] = {}
        self._seqs: dict[int, SeqId] = {}
        self._drawn: dict[SeqId, int] = {}
        self._grants: dict[int, Grant] = {}
        self._plan: StepPlan | None = None
        self._asked, self._asked_for = SwitchMode.OVERLAPPED, layout
        """How the last switch was to be made, and where it goes."""

    @property
    def layout(self) -> Layout:
        """Of the step under way, or of the next one."""
        return self._scheduler.layout

    @property
    def live(self) -> int:
        """Requests that the scheduler knows."""
        return self._scheduler.count()

    @property
    def pages_held(self) -> int:
        """Page copies on all ranks; 0 after a drain."""
        return sum(rank.kv + rank.quarantined for rank in self._scheduler.audit().ranks)

    def add(self, request: Request) -> None:
        """Queue a prompt to be computed here."""
        seq = self._scheduler.add(_name(request), [_WORD] * request.prompt_tokens, _sampling(request))
        self._enter(seq, request, drawn=0)

    def reserve(self, request: Request) -> bool:
        """Promise pages to a prompt that is computed elsewhere; False: no room now."""
        prompt = [_WORD] * request.prompt_tokens
        grant = self._scheduler.reserve(_name(request), prompt, _sampling(request))
        if grant is None:
            return False
        self._grants[request.key] = grant
        self._enter(grant.seq, request, drawn=1)
        return True

    def land(self, key: int) -> bool:
        """A promised prompt has arrived, with its first token; True when that was the last one too."""
        grant = self._grants.pop(key)
        self._scheduler.claim(
            grant.lease, attempt=grant.attempt, incarnation=grant.incarnation, writer=_WRITER
        )
        request = self._requests[grant.seq]
        events = self._scheduler.landed(
            Completion(
                lease=grant.lease,
                attempt=grant.attempt,
                incarnation=grant.incarnation,
                writer=_WRITER,
                num_tokens=request.prompt_tokens,
                checksum=grant.checksum,
                written=Written.whole(len(grant.pages), self._arena),
                first_token=_token(request, 1),
                first_position=request.prompt_tokens,
            )
        )
        ended = any(isinstance(event, FinishedEvent) for event in events)
        if ended:
            self._forget(grant.seq)
        return ended

    def release(self, key: int) -> None:
        """A computed prompt has left."""
        seq = self._seqs[key]
        self._scheduler.release(seq)
        self._forget(seq)

    def snapshot(self, now: float, queued: Sequence[WaitingSequence]) -> Snapshot:
        """What a policy may see at a step boundary."""
        return replace(self._scheduler.snapshot(queued=queued), time_s=now)

    def switch(self, layout: Layout, mode: SwitchMode) -> str:
        """Change layout with the next step, or once most is copied ahead; why not now, or an empty text."""
        self._asked, self._asked_for = mode, layout
        outcome = self._scheduler.request_switch(layout, mode)
        if isinstance(outcome, Refusal):
            return outcome.reason
        return outcome.refusal.reason if isinstance(outcome, SwitchDeferred) else ""

    def leave_room(self, link: LinkView, pending_bytes: int) -> None:
        """The next step's copies ahead leave so many bytes of handoffs, of all ranks, their part of links."""
        self._scheduler.leave_room(link, pushing_bytes=pending_bytes)

    def limit_chunk(self, rows: int | None) -> None:
        """Take at most so many rows while prompts are computed, from the next step on; None: the most."""
        self._scheduler.limit_chunk(rows)

    def begin(self, most: int) -> StepRun | None:
        """The next step; None when there is nothing to run."""
        del most
        plan = self._plan = self._scheduler.next_plan()
        if plan is None:
            return None
        self._scheduler.tidy()
        manifest = plan.manifest
        relocated, rest = 0, None
        if manifest is not None and manifest.layout_from is manifest.layout_to:
            page = self._arena.slot_bytes // self._arena.num_layers
            relocated = max(manifest.kv_bytes_per_layer, default=0) // page
        elif manifest is not None and self._asked is SwitchMode.PRECOPIED:
            rest = self._rest(manifest, plan.mode)
        rows = tuple(map(self._row, plan.sequences))
        return StepRun(rows, 1, manifest is not None, relocated, self._ahead_bytes(plan), rest)

    def advance(self, steps: int) -> None:
        """Steps are single here."""
        del steps

    def fitting(self, steps: int) -> int:
        """Steps are single here."""
        del steps
        return 0

    def complete(self, steps: int) -> Ended:
        """The step has ended."""
        del steps
        assert self._plan is not None
        ended = Ended()
        for event in self._scheduler.complete(self._results(self._plan)):
            if isinstance(event, PrefilledEvent):
                ended.prefilled.append(self._requests[event.seq].key)
            elif isinstance(event, FinishedEvent):
                ended.finished.append(self._requests[event.seq].key)
                self._forget(event.seq)
        self._plan = None
        return ended

    def promised(self) -> Promised:
        """What the router asks for."""
        tokens = self._scheduler.kv_tokens()
        return Promised(tokens.total, tokens.projected)

    def check(self) -> None:
        """Prove the scheduler's invariants."""
        self._scheduler.check_integrity()

    def _row(self, step: SequenceStep) -> BatchRow:
        owner = 0
        if RULES[self.layout].history is KvHistory.OWNER:
            owner = self._scheduler.copies(step.seq)[0][0].rank
        return BatchRow(self._requests[step.seq].key, step.count, step.start, owner, int(step.sample))

    def _rest(self, manifest: SwitchManifest, mode: SwitchMode) -> Rest:
        units = self._units(manifest.layout_from, manifest.layout_to)
        slice_bytes = self._arena.slot_bytes // self._arena.num_layers
        pages = max(manifest.kv_bytes_per_layer, default=0) // slice_bytes
        return Rest(mode, units.rest(self._arena.num_layers - len(manifest.ready_layers), pages))

    def _ahead_bytes(self, plan: StepPlan) -> int | None:
        if plan.precopy is None:
            return 0 if plan.ahead else None
        units = self._units(plan.layout, self._asked_for)
        pages = Counter(move.dst for move in plan.precopy.moves)
        return (
            len(plan.precopy.weight_layers) * units.layer_weights
            + max(pages.values(), default=0) * units.page
        )

    def _units(self, layout_from: Layout, layout_to: Layout) -> Units:
        return Units.of(self._model, self._arena.page_size, layout_from, layout_to)

    def _results(self, plan: StepPlan) -> list[StepResult]:
        tokens: list[SampledToken] = []
        for step in plan.sequences:
            if step.sample:
                self._drawn[step.seq] += 1
                tokens.append(
                    SampledToken(seq=step.seq, token=_token(self._requests[step.seq], self._drawn[step.seq]))
                )
        ranks = map(RankId, range(self._arena.num_ranks))
        return [
            StepResult(step=plan.step, rank=rank, tokens=tuple(tokens) if rank == 0 else ()) for rank in ranks
        ]

    def _enter(self, seq: SeqId, request: Request, *, drawn: int) -> None:
        self._requests[seq], self._seqs[request.key], self._drawn[seq] = request, seq, drawn

    def _forget(self, seq: SeqId) -> None:
        del self._seqs[self._requests.pop(seq).key], self._drawn[seq]


def _name(request: Request) -> RequestId:
    return RequestId(str(request.key))


def _sampling(request: Request) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=request.max_tokens, stop_token_ids=(_STOP,))


def _token(request: Request, index: int) -> int:
    """The output token of a position, from 1: the last one stops, unless the cap does."""
    return _STOP if index == request.output_tokens < request.max_tokens else _WORD
