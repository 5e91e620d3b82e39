"""The planning half of a benchmark: who holds which page, and step plans with real manifests.

Requests are put in place with a history that nobody computes, and taken back to it after each step, so that
every repetition runs the same rows over the same context. Pure: the same calls give the same plans on every
rank. Invariant: the page table describes the state after the last plan made.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from services.bench.request import BenchRequest
from splash_core.errors import Infeasible
from splash_core.ids import Epoch, RankId, SeqId, StepId
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import RULES, KvPlacement, Layout
from splash_core.layout.ownership import PageTable
from splash_core.layout.slots import ArenaMap
from splash_core.layout.wanted import wanted_ranks
from splash_core.scheduling.attention_choice import ChunkShape, choose_cp_storage, choose_form
from splash_core.scheduling.holding import spread
from splash_core.scheduling.step import DrawnToken, NewSequence, SequenceStep, StepPlan, TableUpdate
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Refusal, SwitchManifest, SwitchMode
from splash_core.switch.planner import plan_switch

_GREEDY = SamplingParams(temperature=0.0, max_tokens=1 << 30)


class BenchGroup:
    """Requests of one group, without scheduler or leases.

    Args:
        spec: the model.
        arena: the slot map of each rank.
        layout: the layout that the ranks start in.
        staging_bytes: most bytes that one chunk of a switch may stage on a rank.
    """

    def __init__(self, spec: ModelSpec, arena: ArenaMap, layout: Layout, *, staging_bytes: int) -> None:
        self.spec = spec
        self.arena = arena
        self.layout = layout
        self.table = PageTable(arena)
        self._staging_bytes = staging_bytes
        self._epoch = Epoch(0)
        self._steps = 0
        self._requests: dict[SeqId, BenchRequest] = {}
        self._next_seq = 1
        self._finished: list[SeqId] = []

    @property
    def seqs(self) -> tuple[SeqId, ...]:
        """Requests in place, in order of arrival."""
        return tuple(self._requests)

    def cached(self, seq: SeqId) -> int:
        """Tokens of a request whose KV is in pages."""
        return self._requests[seq].cached

    def owner(self, seq: SeqId) -> RankId:
        """The rank that owns a request where histories have owners."""
        return self._requests[seq].owner

    def place(self, batch: int, history: int, *, first: int = 0) -> None:
        """Put `batch` requests with `history` cached tokens each in place, owners in turn.

        Pages are handed out to all requests alternately, as when their prompts are computed side by side.

        Args:
            batch: requests.
            history: cached tokens of each.
            first: the first one's place among all token sequences; those of the same place are the same.

        Raises:
            Infeasible: they do not fit; nothing has changed. Names pages needed and free.
        """
        self.put([(history, index) for index in range(batch)], first=first)

    def put(self, histories: Sequence[tuple[int, int]], *, first: int = 0) -> None:
        """As `place`, each request with cached tokens and an owner (taken modulo T) of its own."""
        requests = [
            self._new_request(owner, history, text=first + index)
            for index, (history, owner) in enumerate(histories)
        ]
        self._requests.update((request.seq, request) for request in requests)
        try:
            self._check_room(self.layout, {request.seq: request.history for request in requests})
        except Infeasible:
            for request in requests:
                del self._requests[request.seq]
            raise
        page, longest = self.arena.page_size, max((history for history, _ in histories), default=0)
        for tokens in range(page, longest + page, page):
            for request in requests:
                self._extend(request, min(tokens, request.history))
        for request in requests:
            request.cached = request.history

    def clear(self) -> None:
        """Forget all requests and free their pages."""
        for request in self._requests.values():
            self._drop_pages(request, keep=0)
            if request.announced:
                self._finished.append(request.seq)
        self._requests.clear()

    def restart(self, layout: Layout) -> None:
        """Be empty and in `layout` without a switch: for measurements that run no step afterwards."""
        self.clear()
        self.layout = layout

    def rewind(self) -> None:
        """Take every request back to its history; pages beyond it are freed."""
        for request in self._requests.values():
            self._drop_pages(request, keep=self._pages_for(request.history))
            request.cached = request.history

    def step(self, rows: Mapping[SeqId, int], *, sampled: Collection[SeqId] = ()) -> StepPlan:
        """A step in the present layout.

        Args:
            rows: further tokens of each request.
            sampled: requests whose last row draws a token.

        Raises:
            Infeasible: a rank has no room for the rows' pages.
        """
        self._check_room(self.layout, self._grown(rows))
        return self._plan(rows, sampled=sampled)

    def decode_ahead(self, count: int) -> list[StepPlan]:
        """Steps of one row of each request, as a leader sends them that is one step ahead.

        From the second on, rows are the tokens that the step before draws.

        Raises:
            Infeasible: a rank has no room for the rows' pages.
        """
        rows = dict.fromkeys(self.seqs, 1)
        plans = [self.step(rows, sampled=self.seqs) for _ in range(count)]
        return [*plans[:1], *map(self._drawn_before, plans[1:])]

    def switch(
        self,
        layout: Layout,
        mode: SwitchMode,
        rows: Mapping[SeqId, int],
        *,
        sampled: Collection[SeqId] = (),
    ) -> StepPlan:
        """A step that switches first and then runs rows in `layout`.

        Raises:
            Infeasible: the planner refuses; with its numbers.
        """
        self._check_room(layout, self._grown(rows))
        manifest = self.manifest(layout)
        self.table.apply(manifest)
        self._epoch, self.layout = manifest.epoch, layout
        for request in self._requests.values():
            request.told = 0
        return self._plan(rows, sampled=sampled, manifest=manifest, mode=mode)

    def manifest(self, layout: Layout) -> SwitchManifest:
        """What a switch to `layout` would move now; nothing changes.

        Raises:
            Infeasible: the planner refuses; with its numbers.
        """
        planned = plan_switch(
            table=self.table,
            wanted=wanted_ranks(
                (request.pages, self._placement(request, layout)) for request in self._requests.values()
            ),
            layout_from=self.layout,
            layout_to=layout,
            epoch=Epoch(self._epoch + 1),
            staging_bytes=self._staging_bytes,
        )
        if isinstance(planned, Refusal):
            raise Infeasible(planned.reason)
        return planned

    def _new_request(self, owner: int, history: int, *, text: int) -> BenchRequest:
        seq = SeqId(self._next_seq)
        self._next_seq += 1
        owner = RankId(owner % self.arena.num_ranks)
        return BenchRequest(seq=seq, text=text, vocab=self.spec.vocab, owner=owner, history=history)

    def _placement(self, request: BenchRequest, layout: Layout) -> KvPlacement:
        return RULES[layout].placement(
            num_ranks=self.arena.num_ranks, owner=request.owner, rotation=int(request.owner)
        )

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.arena.page_size)

    def _check_room(self, layout: Layout, grown: Mapping[SeqId, int]) -> None:
        """Refuse before anything changes: all requests, some grown to `grown` tokens, must fit `layout`."""
        needed = [0] * self.arena.num_ranks
        for seq, request in self._requests.items():
            pages = self._pages_for(grown.get(seq, request.cached))
            counts = spread(self._placement(request, layout), pages, self.arena.num_ranks)
            needed = [before + count for before, count in zip(needed, counts, strict=True)]
        room = Capacity.of(self.arena, RULES[layout]).pages
        if max(needed) > room:
            raise Infeasible(
                f"{layout}: {len(self._requests)} requests need {max(needed)} pages of "
                f"{self.arena.page_size} tokens on a rank, which has room for {room}"
            )

    def _grown(self, rows: Mapping[SeqId, int]) -> dict[SeqId, int]:
        return {seq: self._requests[seq].cached + count for seq, count in rows.items()}

    def _extend(self, request: BenchRequest, tokens: int) -> None:
        placement = self._placement(request, self.layout)
        while len(request.pages) * self.arena.page_size < tokens:
            ranks = placement.ranks_of_page(len(request.pages))
            page = self.table.new_page(ranks, lent=RULES[self.layout].lends)
            assert page is not None  # `_check_room` has counted
            request.pages.append(page)

    def _drop_pages(self, request: BenchRequest, *, keep: int) -> None:
        for page in request.pages[keep:]:
            self.table.release(page)
        del request.pages[keep:]
        request.told = min(request.told, keep)

    def _plan(
        self,
        rows: Mapping[SeqId, int],
        *,
        sampled: Collection[SeqId],
        manifest: SwitchManifest | None = None,
        mode: SwitchMode = SwitchMode.OVERLAPPED,
    ) -> StepPlan:
        running = [self._requests[seq] for seq in rows]
        started = tuple(self._announce(request) for request in running if not request.announced)
        chunks = [ChunkShape(request.cached, rows[request.seq]) for request in running]
        steps = tuple(
            self._rows(request, rows[request.seq], sample=request.seq in sampled) for request in running
        )
        # A manifest moves pages of all requests, also of those without rows in this step.
        touched = running if manifest is None else [r for r in self._requests.values() if r.announced]
        tables = tuple(update for request in touched if (update := self._table_update(request)))
        finished, self._finished = tuple(self._finished), []
        self._steps += 1
        rule = RULES[self.layout]
        return StepPlan(
            step=StepId(self._steps),
            epoch=self._epoch,
            layout=self.layout,
            sequences=steps,
            started=started,
            tables=tables,
            finished=finished,
            manifest=manifest,
            mode=mode,
            form=choose_form(self.spec, rule, chunks),
            cp_storage=choose_cp_storage(self.spec, rule, chunks),
        )

    def _announce(self, request: BenchRequest) -> NewSequence:
        request.announced = True
        return NewSequence(
            seq=request.seq,
            sampling=_GREEDY,
            tokens=request.tokens(0, request.cached),
            num_prompt=request.cached,
        )

    def _rows(self, request: BenchRequest, count: int, *, sample: bool) -> SequenceStep:
        start = request.cached
        self._extend(request, start + count)
        request.cached = start + count
        return SequenceStep(
            seq=request.seq,
            start=start,
            tokens=request.tokens(start, start + count),
            sample=sample,
        )

    def _drawn_before(self, plan: StepPlan) -> StepPlan:
        drawn = DrawnToken(StepId(plan.step - 1))
        told = (self._requests[rows.seq].tokens(rows.start - 1, rows.start) for rows in plan.sequences)
        pairs = zip(plan.sequences, told, strict=True)
        return replace(plan, sequences=tuple(replace(rows, tokens=drawn, before=t) for rows, t in pairs))

    def _table_update(self, request: BenchRequest) -> TableUpdate | None:
        if request.told == len(request.pages):
            return None
        rows = self.table.rows(request.pages[request.told :])
        update = TableUpdate(seq=request.seq, first_page=request.told, slots=rows)
        request.told = len(request.pages)
        return update
