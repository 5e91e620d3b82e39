"""Layout switches and relocations: which pages should go where, planned at a step boundary.

A switch moves every page that nobody outside uses. A relocation moves the pages of sequences that have
landed elsewhere than the present layout puts them; several may share a manifest, but not with a switch,
which covers them anyway. Invariant: after `at_boundary` the table, the layout and the owners describe the
state in which the next rows run, and the returned manifest is the whole difference.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from splash_core.errors import Conflict
from splash_core.ids import Epoch, PageId, RankId
from splash_core.layout.layout import RULES, KvHistory, KvPlacement, Layout, LayoutRule, Matrices
from splash_core.layout.ownership import wanted_ranks
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import SwitchDeferred, SwitchedEvent, SwitchRefusedEvent
from splash_core.scheduling.owners import NO_OWNERS, OwnerAssignment, Owners
from splash_core.scheduling.precopying import AheadRecord, CopyingAhead
from splash_core.scheduling.residency import Present, Residency
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.scheduling.vacating import plan_vacating
from splash_core.switch.manifest import Refusal, SwitchManifest, SwitchMode
from splash_core.switch.planner import plan_switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What a step boundary changes before the next rows run."""

    manifest: SwitchManifest | None = None
    mode: SwitchMode = SwitchMode.OVERLAPPED
    refused: SwitchRefusedEvent | None = None
    ahead: AheadRecord = AheadRecord()
    """What was copied ahead of the manifest."""


@dataclass(frozen=True, slots=True)
class _Wish:
    layout: Layout
    mode: SwitchMode


@dataclass(frozen=True, slots=True)
class _Planned:
    state: tuple[object, ...]
    """Of the group when it was planned."""
    outcome: SwitchManifest | Refusal
    owners: Owners


class Switcher:
    """Plans switches and relocations of one group."""

    def __init__(
        self, *, roster: Roster, residency: Residency, present: Present, config: SchedulerConfig
    ) -> None:
        self._roster = roster
        self._residency = residency
        self._present = present
        self._config = config
        self._owners = OwnerAssignment(roster=roster, residency=residency, present=present)
        self.ahead = CopyingAhead(
            roster=roster, residency=residency, present=present, owners=self._owners, config=config
        )
        self._wish: _Wish | None = None
        self._waits_for_borrowed: Matrices = frozenset()
        self._planned: _Planned | None = None
        """The last plan: asked for between two steps, it is carried out as it is."""

    @property
    def pending(self) -> bool:
        """True while a switch is scheduled for the next boundary."""
        return self._wish is not None

    @property
    def copying(self) -> bool:
        """True while the switch that is scheduled copies ahead."""
        return self._wish is not None and self.ahead.layout is self._wish.layout

    def request(self, layout: Layout, mode: SwitchMode) -> SwitchedEvent | SwitchDeferred | Refusal | None:
        """Schedule a switch for the next step boundary.

        Returns:
            None when it is scheduled; a `SwitchedEvent` when the group already runs in `layout`;
            `SwitchDeferred` when pages in use outside are in the way for now; a `Refusal` otherwise.

        Raises:
            Conflict: another switch is scheduled, or the layout is not one of the group's.
        """
        if layout not in self._config.layouts:
            known = ", ".join(self._config.layouts)
            raise Conflict(f"layout {layout} is not among those of {self._config.group}: {known}")
        present = self._present
        if present.runs(layout) and self.copying:
            self._wish = None  # called off; what it holds comes back at the boundary
        scheduled = None if self._wish is None else self._wish.layout
        if scheduled not in (None, layout):
            raise Conflict(f"a switch to {scheduled} is scheduled; ask for {layout} after it")
        if self.copying:
            return None
        if present.runs(layout):
            return SwitchedEvent(
                layout_from=layout, layout_to=layout, epoch=present.epoch, mode=mode, bytes_received=0
            )
        planned = self._plan(layout).outcome
        if isinstance(planned, Refusal):
            if not self._may_pass(planned):
                return planned
            self._waits_for_borrowed = RULES[layout].fills
            return SwitchDeferred(refusal=planned)
        self._wish = _Wish(layout=layout, mode=mode)
        return None

    def at_boundary(self) -> Boundary:
        """Carry out what is due between two steps."""
        # Set by a deferred request, which is repeated at each boundary; without a repeat it lapses.
        self._residency.avoid_borrowed = self._waits_for_borrowed
        self._waits_for_borrowed = frozenset()
        if not self.copying:
            self.ahead.end(undo=True)
        if self._wish is None:
            return Boundary(manifest=self._relocate())
        if self.ahead.goes_on(self._wish.layout, self._wish.mode):
            return Boundary(manifest=self._relocate() or self.ahead.clear())
        wish, self._wish = self._wish, None
        ahead = self.ahead.adopt()
        plan, self._planned = self._plan(wish.layout), None
        planned, owners = plan.outcome, plan.owners
        self.ahead.end(undo=isinstance(planned, Refusal))
        if isinstance(planned, Refusal):
            retry = self._may_pass(planned)
            refused = SwitchRefusedEvent(refusal=planned, retry=retry)
            return Boundary(manifest=self._relocate(), refused=refused)
        self._residency.table.apply(planned)
        self._present.layout, self._present.epoch = wish.layout, planned.epoch
        self._residency.avoid_borrowed = frozenset()
        for sequence in self._roster:
            sequence.owner = owners.get(sequence.seq, sequence.owner)
        self._settle(self._roster.within(SeqState.RUNNING, SeqState.LANDED))
        planned = replace(planned, ready_layers=ahead.ready_layers)
        return Boundary(manifest=planned, mode=ahead.mode(wish.mode), ahead=ahead)

    def make_way(self) -> Boundary:
        """After the step's rows have their pages: let running sequences make way for a landing that waits.

        To be called only when `at_boundary` has moved nothing.
        """
        residency, present = self._residency, self._present
        wanted, residency.wanted_ordinary = residency.lack(residency.wanted_ordinary), {}
        if not wanted or not residency.lent:
            return Boundary()
        youngest_first = reversed(self._roster.within(SeqState.RUNNING))
        planned = plan_vacating(
            residency.table,
            (page for sequence in youngest_first for page in sequence.pages),
            wanted,
            lent=residency.lent,
            layout=present.layout,
            epoch=present.epoch,
            staging_bytes=self._config.staging_bytes,
        )
        if planned is not None:
            residency.table.apply(planned)
            residency.note_borrowed(tuple(move.page for move in planned.moves))
        return Boundary(manifest=planned)

    def _plan(self, layout: Layout) -> _Planned:
        """The first owner assignment that gives a manifest, else the last refusal."""
        state = self._fingerprint(layout)
        if self._planned is not None and self._planned.state == state:
            return self._planned
        rule = RULES[layout]
        movable = [sequence for sequence in self._roster if sequence.movable]
        owners: Owners = {}
        planned: SwitchManifest | Refusal | None = None
        for projected, promised in ((True, self.ahead.promised), (False, NO_OWNERS)):
            owners = self._owners.assign(movable, rule, projected=projected, promised=promised)
            planned = self._call_planner(self._wanted(movable, rule, owners), layout, self._present.epoch + 1)
            if isinstance(planned, SwitchManifest) or rule.history is not KvHistory.OWNER:
                break
        assert planned is not None
        self._planned = _Planned(state, planned, owners)
        return self._planned

    def _fingerprint(self, layout: Layout) -> tuple[object, ...]:
        """Equal for two moments between which a plan stays valid: page ids are never used again."""
        table = self._residency.table
        return (
            layout,
            self._present.epoch,
            self.ahead.promised,
            tuple((page, table.is_pinned(page), table.row(page)) for page in table.pages),
            tuple((s.seq, s.state, s.owner, len(s.tokens), len(s.pages)) for s in self._roster),
        )

    def _call_planner(
        self,
        wanted: Mapping[PageId, tuple[RankId, ...]],
        layout: Layout,
        epoch: int,
        *,
        avoid_borrowed: Matrices = frozenset(),
    ) -> SwitchManifest | Refusal:
        return plan_switch(
            table=self._residency.table,
            wanted=wanted,
            layout_from=self._present.layout,
            layout_to=layout,
            epoch=Epoch(epoch),
            staging_bytes=self._config.staging_bytes,
            avoid_borrowed=avoid_borrowed,
        )

    def _wanted(
        self, sequences: Seq[Sequence], rule: LayoutRule, owners: Owners
    ) -> dict[PageId, tuple[RankId, ...]]:
        return wanted_ranks(
            (sequence.pages, self._placement(sequence, rule, owners)) for sequence in sequences
        )

    def _placement(self, sequence: Sequence, rule: LayoutRule, owners: Owners) -> KvPlacement:
        return rule.placement(
            num_ranks=self._residency.num_ranks,
            owner=owners.get(sequence.seq, sequence.owner),
            rotation=sequence.rotation,
        )

    def _relocate(self) -> SwitchManifest | None:
        """Bring landed sequences to where the present layout wants them, as many as fit now."""
        landed = self._settle(self._roster.within(SeqState.LANDED))
        if not landed:
            return None
        while landed:
            planned = self._plan_relocation(landed)
            if isinstance(planned, SwitchManifest):
                return planned
            if self._residency.table.ahead.clear():
                continue
            if len(landed) > 1:
                landed.pop()
            elif not self._residency.preempt_younger(landed[0], self._residency.placement(landed[0]).owners):
                return None
        return None

    def _plan_relocation(self, landed: Seq[Sequence]) -> SwitchManifest | Refusal:
        """Plan and apply; on a refusal nothing has changed."""
        present = self._present
        planned: SwitchManifest | Refusal | None = None
        for projected in (True, False):
            owners = self._relocation_owners(landed, projected=projected)
            wanted = self._wanted(landed, present.rule, owners)
            planned = self._call_planner(
                wanted, present.layout, present.epoch, avoid_borrowed=self._residency.avoid_borrowed
            )
            if isinstance(planned, SwitchManifest):
                self._residency.table.apply(planned)
                for sequence in landed:
                    sequence.owner = owners[sequence.seq]
                self._settle(landed)
                break
        assert planned is not None
        return planned

    def _relocation_owners(self, landed: Seq[Sequence], *, projected: bool) -> Owners:
        """Owners as promised, but for those whose pages lie elsewhere (the layout changed meanwhile)."""
        settled = self._roster.within(SeqState.RUNNING)
        chosen = self._owners.assign([*settled, *landed], self._present.rule, projected=projected)
        return {sequence.seq: chosen[sequence.seq] for sequence in landed}

    def _settle(self, sequences: Seq[Sequence]) -> list[Sequence]:
        """Let landed sequences run whose pages are in place; returns those whose pages are not."""
        astray: list[Sequence] = []
        for sequence in sequences:
            placement = self._residency.placement(sequence)
            if any(
                self._residency.table.ranks(page) != tuple(sorted(placement.ranks_of_page(index)))
                for index, page in enumerate(sequence.pages)
            ):
                astray.append(sequence)
                continue
            self._residency.note_borrowed(sequence.pages)
            sequence.state = SeqState.RUNNING
        return astray

    def _may_pass(self, refusal: Refusal) -> bool:
        """True when the refusal may vanish by itself, because pages in use outside are in the way."""
        table = self._residency.table
        if refusal.needed_slots is None or refusal.free_slots is None or refusal.rank is None:
            return False
        pinned = (page for page in table.pages if table.is_pinned(page))
        on_rank = sum(refusal.rank in table.ranks(page) for page in pinned)
        return refusal.needed_slots - refusal.free_slots <= on_rank
