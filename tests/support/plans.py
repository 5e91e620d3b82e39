"""Step plans made by hand: page tables without a scheduler, for tests of the engine's numbers."""

from dataclasses import dataclass, field

from splash_core.ids import Epoch, PageId, RankId, SeqId, StepId
from splash_core.layout.forms import AttentionForm, CpStorage
from splash_core.layout.layout import RULES, KvPlacement, Layout
from splash_core.layout.ownership import PageTable
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.step import NewSequence, SequenceStep, StepPlan, TableUpdate
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Refusal, SwitchManifest, SwitchMode
from splash_core.switch.planner import plan_switch


@dataclass
class PlannedSequence:
    tokens: list[int]
    num_prompt: int
    sampling: SamplingParams
    placement: KvPlacement
    owner: RankId
    pages: list[PageId] = field(default_factory=list)
    cached: int = 0
    announced: bool = False
    sent_pages: int = 0


class PlanBuilder:
    """Builds a group's plans; owners go round robin, rotations count up."""

    def __init__(self, arena: ArenaMap, layout: Layout) -> None:
        self.arena = arena
        self.table = PageTable(arena)
        self.layout = layout
        self.epoch = Epoch(0)
        self.sequences: dict[SeqId, PlannedSequence] = {}
        self._step = 0

    def start(
        self, tokens: list[int], *, num_prompt: int | None = None, sampling: SamplingParams | None = None
    ) -> SeqId:
        seq = SeqId(len(self.sequences))
        owner = RankId(seq % self.arena.num_ranks)
        self.sequences[seq] = PlannedSequence(
            tokens=list(tokens),
            num_prompt=len(tokens) if num_prompt is None else num_prompt,
            sampling=sampling or SamplingParams(temperature=0.0, max_tokens=1 << 20),
            placement=self._placement(seq, owner),
            owner=owner,
        )
        return seq

    def step(
        self,
        rows: dict[SeqId, int],
        *,
        form: AttentionForm = AttentionForm.ABSORBED,
        cp_storage: CpStorage = CpStorage.PASS_Q,
        manifest: SwitchManifest | None = None,
        mode: SwitchMode = SwitchMode.OVERLAPPED,
    ) -> StepPlan:
        """A plan with `rows[seq]` further tokens of each sequence; rows that reach the end sample."""
        started, tables, steps = [], [], []
        lent = RULES[self.layout].lends
        for seq, count in rows.items():
            state = self.sequences[seq]
            if not state.announced:
                started.append(
                    NewSequence(
                        seq=seq,
                        sampling=state.sampling,
                        tokens=tuple(state.tokens[: state.num_prompt]),
                        num_prompt=state.num_prompt,
                    )
                )
                state.announced = True
            end = state.cached + count
            while len(state.pages) * self.arena.page_size < end:
                ranks = state.placement.ranks_of_page(len(state.pages))
                page = self.table.new_page(ranks, lent=lent)
                assert page is not None, "the test's arena is too small"
                state.pages.append(page)
            first = state.sent_pages
            if len(state.pages) > first:
                told = self.table.rows(state.pages[first:])
                tables.append(TableUpdate(seq=seq, first_page=first, slots=told))
                state.sent_pages = len(state.pages)
            steps.append(
                SequenceStep(
                    seq=seq,
                    start=state.cached,
                    tokens=tuple(state.tokens[state.cached : end]),
                    sample=end == len(state.tokens),
                )
            )
            state.cached = end
        self._step += 1
        return StepPlan(
            step=StepId(self._step),
            epoch=self.epoch,
            layout=self.layout,
            sequences=tuple(steps),
            started=tuple(started),
            tables=tuple(tables),
            manifest=manifest,
            mode=mode,
            form=form,
            cp_storage=cp_storage,
        )

    def switch(self, layout: Layout, rows: dict[SeqId, int], *, mode: SwitchMode) -> StepPlan:
        """A plan that switches first and then runs rows in the new layout."""
        wanted = {}
        for seq, state in self.sequences.items():
            placement = self._placement(seq, state.owner, layout)
            state.placement = placement
            state.sent_pages = 0
            for index, page in enumerate(state.pages):
                wanted[page] = placement.ranks_of_page(index)
        manifest = plan_switch(
            table=self.table,
            wanted=wanted,
            layout_from=self.layout,
            layout_to=layout,
            epoch=Epoch(self.epoch + 1),
            staging_bytes=1 << 28,
        )
        assert not isinstance(manifest, Refusal), manifest
        self.table.apply(manifest)
        self.epoch, self.layout = manifest.epoch, layout
        return self.step(rows, manifest=manifest, mode=mode)

    def _placement(self, seq: SeqId, owner: RankId, layout: Layout | None = None) -> KvPlacement:
        return RULES[layout or self.layout].placement(
            num_ranks=self.arena.num_ranks, owner=owner, rotation=int(seq)
        )
