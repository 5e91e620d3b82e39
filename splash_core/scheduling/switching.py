"""Layout switches: asked for at any time, planned and made the present state at a step boundary.

A switch moves every page that nobody outside uses, so a relocation never shares a manifest with it.
Invariant: after `at_boundary` the table, the layout and the owners describe the state in which the next rows
run, and the returned manifest, with what was copied ahead of it, is the whole difference.
"""

from dataclasses import dataclass, replace

from splash_core.errors import Blocked, Conflict
from splash_core.layout.layout import RULES, KvHistory, Layout, Matrices
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import SwitchDeferred, SwitchedEvent, SwitchRefusedEvent
from splash_core.scheduling.holding import Present
from splash_core.scheduling.mirror import MirrorBook
from splash_core.scheduling.owners import NO_OWNERS, OwnerAssignment, Owners
from splash_core.scheduling.precopying import AheadRecord, CopyingAhead
from splash_core.scheduling.pushes import PushBook
from splash_core.scheduling.relocation import Relocator
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.sequence import Roster, SeqState
from splash_core.scheduling.vacating import plan_vacating
from splash_core.switch.manifest import Refusal, SwitchManifest, SwitchMode


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
    state: tuple[object, ...] | None
    """Of the group when it was planned; None if the plan is not to be kept."""
    outcome: SwitchManifest | Refusal
    owners: Owners
    waits: bool = False
    """Pages that are being pushed would have to move: it is planned again when they are written."""


class Switcher:
    """Plans switches and relocations of one group."""

    def __init__(
        self,
        *,
        roster: Roster,
        residency: Residency,
        present: Present,
        mirrors: MirrorBook,
        pushes: PushBook,
        config: SchedulerConfig,
    ) -> None:
        self._roster = roster
        self._residency = residency
        self._present = present
        self._pushes = pushes
        self._config = config
        self._owners = OwnerAssignment(roster=roster, residency=residency, present=present)
        self._relocator = Relocator(
            roster=roster, residency=residency, present=present, owners=self._owners, config=config
        )
        self.ahead = CopyingAhead(
            roster=roster,
            residency=residency,
            present=present,
            mirrors=mirrors,
            owners=self._owners,
            config=config,
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
            None when it is scheduled, be it for the boundary at which the pushes of prompts that are being
            computed have ended; a `SwitchedEvent` when the group already runs in `layout`;
            `SwitchDeferred` when pages in use outside are in the way for now; a `Refusal` otherwise.

        Raises:
            Blocked: another switch is scheduled.
            Conflict: the layout is not one of the group's.
        """
        if layout not in self._config.layouts:
            known = ", ".join(self._config.layouts)
            raise Conflict(f"layout {layout} is not among those of {self._config.group}: {known}")
        present = self._present
        if present.runs(layout) and self.copying:
            self._wish = None  # called off; what it holds comes back at the boundary
        scheduled = None if self._wish is None else self._wish.layout
        if scheduled not in (None, layout):
            raise Blocked(f"a switch to {scheduled} is scheduled; ask for {layout} after it")
        if self.copying:
            return None
        if present.runs(layout):
            return SwitchedEvent(
                layout_from=layout, layout_to=layout, epoch=present.epoch, mode=mode, bytes_received=0
            )
        wish = _Wish(layout=layout, mode=mode)
        # What copies ahead is planned when it is due: a refusal comes as an event then.
        plan = None if mode is SwitchMode.PRECOPIED else self._plan(wish)
        planned = None if plan is None or plan.waits else plan.outcome
        if isinstance(planned, Refusal):
            if not self._may_pass(planned):
                return planned
            self._waits_for_borrowed = RULES[layout].fills
            return SwitchDeferred(refusal=planned)
        self._wish = wish
        return None

    @property
    def waits_for_steps(self) -> bool:
        """True when the next boundary may change more than rows, so that no step may be under way at it."""
        if self._wish is None:
            changes = self.ahead.layout is not None
        else:
            changes = not (self.copying and self._wish.mode is SwitchMode.PRECOPIED and self.ahead.carries_on)
        return changes or self._relocator.has_work or self._may_make_way

    def at_boundary(self) -> Boundary:
        """Carry out what is due between two steps; beside a step under way only if it need not wait."""
        self._residency.table.settle()
        # Set by a deferred request, which is repeated at each boundary; without a repeat it lapses.
        self._residency.avoid_borrowed = self._waits_for_borrowed
        self._waits_for_borrowed = frozenset()
        self._pushes.held = False
        if not self.copying:
            self.ahead.end()
        if self._wish is None:
            return Boundary(manifest=self._relocator.relocate())
        if self.ahead.goes_on(self._wish.layout, self._wish.mode):
            return Boundary(manifest=self._relocator.relocate() or self.ahead.clear())
        wish, self._wish = self._wish, None
        return self._switch(wish)

    def _switch(self, wish: _Wish) -> Boundary:
        """Plan a switch that is due, and make its outcome the present state."""
        table, ahead = self._residency.table, self.ahead.record()
        plan, self._planned = self._plan(wish), None
        if plan.waits:
            # In bounded time: a push has a deadline, and no new one begins meanwhile.
            self._wish, self._pushes.held = wish, True
            return Boundary(manifest=self._relocator.relocate())
        if isinstance(plan.outcome, Refusal) and table.ahead.clear():
            ahead = replace(ahead, fallback=f"no room beside second copies: {plan.outcome.reason}")
            plan = self._plan(wish)
        planned = plan.outcome
        if isinstance(planned, Refusal):
            self.ahead.end()
            refused = SwitchRefusedEvent(refusal=planned, retry=self._may_pass(planned))
            return Boundary(manifest=self._relocator.relocate(), refused=refused)
        ahead = replace(ahead, taken=self.ahead.told())
        table.apply(planned)
        table.turn()
        self.ahead.end()
        self._present.layout, self._present.epoch = wish.layout, planned.epoch
        self._residency.avoid_borrowed = frozenset()
        for sequence in self._roster:
            sequence.owner = plan.owners.get(sequence.seq, sequence.owner)
        self._relocator.settle(self._roster.within(SeqState.RUNNING, SeqState.LANDED))
        planned = replace(planned, ready_layers=ahead.ready_layers)
        return Boundary(manifest=planned, mode=ahead.mode(wish.mode), ahead=ahead)

    def make_way(self) -> Boundary:
        """After the step's rows have their pages: let running sequences make way for a landing that waits.

        To be called only when `at_boundary` has moved nothing and no step is under way.
        """
        residency, present = self._residency, self._present
        wanted = residency.lack(residency.wanted_ordinary)
        self.pass_by()
        if not wanted or not residency.lent:
            return Boundary()
        youngest_first = reversed(self._roster.within(SeqState.RUNNING))
        planned = plan_vacating(
            residency.table,
            (
                page
                for sequence in youngest_first
                for page in sequence.pages
                if not residency.table.is_pinned(page)
            ),
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

    def pass_by(self) -> None:
        """Nobody makes way for a landing that waits: it asks again at the next boundary."""
        self._residency.wanted_ordinary = {}

    @property
    def _may_make_way(self) -> bool:
        """True when `make_way` may find something to do."""
        return bool(self._residency.lent and self._residency.lack(self._residency.wanted_ordinary))

    def _plan(self, wish: _Wish) -> _Planned:
        """The first owner assignment that gives a manifest, else the last refusal."""
        # Rows to come change with every step, so a plan beside them is not worth keeping.
        state = None if self.ahead.layout is not None else self._fingerprint(wish.layout)
        promised = self.ahead.promised if self._residency.table.ahead else NO_OWNERS
        if state is not None and self._planned is not None and self._planned.state == state:
            return self._planned
        rule = RULES[wish.layout]
        movable = [sequence for sequence in self._roster if sequence.movable]
        owners: Owners = {}
        planned: SwitchManifest | Refusal | None = None
        for projected in (True, False):
            owners = self._owners.assign(movable, rule, projected=projected, promised=promised)
            wanted = self._relocator.wanted(movable, rule, owners)
            if self._pushes.read_leaving(wanted, lent=rule.lends):
                return _Planned(None, _being_pushed(self._present.layout, wish.layout), owners, waits=True)
            planned = self._relocator.plan(wanted, wish.layout, self._present.epoch + 1)
            if isinstance(planned, SwitchManifest) or rule.history is not KvHistory.OWNER:
                break
        assert planned is not None
        self._planned = _Planned(state, planned, owners)
        return self._planned

    def _fingerprint(self, layout: Layout) -> tuple[object, ...]:
        """Equal for two moments between which a plan stays valid."""
        return (
            layout,
            self._present.epoch,
            self._residency.table.changes,
            tuple((s.seq, s.state, s.owner, s.length, len(s.pages)) for s in self._roster),
        )

    def _may_pass(self, refusal: Refusal) -> bool:
        """True when the refusal may vanish by itself, because pages in use outside are in the way."""
        table = self._residency.table
        if refusal.needed_slots is None or refusal.free_slots is None or refusal.rank is None:
            return False
        pinned = (page for page in table.pages if table.is_pinned(page))
        on_rank = sum(refusal.rank in table.ranks(page) for page in pinned)
        return refusal.needed_slots - refusal.free_slots <= on_rank


def _being_pushed(layout_from: Layout, layout_to: Layout) -> Refusal:
    return Refusal(
        layout_from=layout_from,
        layout_to=layout_to,
        reason=f"{layout_from} → {layout_to}: pages of prompts that are being computed are being pushed",
    )
