"""Where pages should go, and relocations: landed sequences brought to where the present layout wants them.

Several sequences may share a relocation. Invariant: a sequence that runs has all its pages where its
placement puts them; one whose pages are elsewhere waits, landed, for a relocation or a switch.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import cycle

from splash_core.ids import Epoch, PageId, RankId
from splash_core.layout.layout import KvPlacement, Layout, LayoutRule, Matrices
from splash_core.layout.wanted import wanted_ranks
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Present
from splash_core.scheduling.owners import OwnerAssignment, Owners
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.switch.manifest import Refusal, SwitchManifest
from splash_core.switch.planner import plan_switch


class Relocator:
    """Plans moves of one group's pages, and carries out relocations."""

    def __init__(
        self,
        *,
        roster: Roster,
        residency: Residency,
        present: Present,
        owners: OwnerAssignment,
        config: SchedulerConfig,
    ) -> None:
        self._roster = roster
        self._residency = residency
        self._present = present
        self._owners = owners
        self._staging_bytes = config.staging_bytes

    def wanted(
        self, sequences: Seq[Sequence], rule: LayoutRule, owners: Owners
    ) -> dict[PageId, tuple[RankId, ...]]:
        """Ranks that shall hold each page under `rule`; pages with a row to come need no plan."""
        return wanted_ranks(
            ((sequence.pages, self._placement(sequence, rule, owners)) for sequence in sequences),
            skip=self._residency.table.ahead,
        )

    def plan(
        self,
        wanted: Mapping[PageId, tuple[RankId, ...]],
        layout: Layout,
        epoch: int,
        *,
        avoid_borrowed: Matrices = frozenset(),
    ) -> SwitchManifest | Refusal:
        """Moves from the present layout to `layout`; nothing is changed yet."""
        return plan_switch(
            table=self._residency.table,
            wanted=wanted,
            layout_from=self._present.layout,
            layout_to=layout,
            epoch=Epoch(epoch),
            staging_bytes=self._staging_bytes,
            avoid_borrowed=avoid_borrowed,
        )

    def relocate(self) -> SwitchManifest | None:
        """Bring landed sequences to where the present layout wants them, as many as fit now."""
        landed = self.settle(self._roster.going_on(SeqState.LANDED))
        if not landed:
            return None
        while landed:
            planned = self._relocate(landed)
            if isinstance(planned, SwitchManifest):
                return planned
            if self._residency.table.ahead.clear():
                continue  # copies that a switch makes ahead take the room of none that is wanted now
            if len(landed) > 1:
                landed.pop()
            elif not self._residency.preempt_younger(landed[0], self._residency.placement(landed[0]).owners):
                return None
        return None

    @property
    def has_work(self) -> bool:
        """True when a landed sequence lies elsewhere than where it is wanted."""
        return not all(map(self._in_place, self._roster.going_on(SeqState.LANDED)))

    def settle(self, sequences: Seq[Sequence]) -> list[Sequence]:
        """Let landed sequences run whose pages are in place; returns those whose pages are not."""
        astray: list[Sequence] = []
        for sequence in sequences:
            if not self._in_place(sequence):
                astray.append(sequence)
                continue
            self._residency.note_borrowed(sequence.pages)
            sequence.state = SeqState.RUNNING
        return astray

    def _in_place(self, sequence: Sequence) -> bool:
        placement = self._residency.placement(sequence)
        turns = [frozenset(placement.ranks_of_page(index)) for index in range(len(placement.owners))]
        return self._residency.table.placed(sequence.pages, cycle(turns))

    def _relocate(self, landed: Seq[Sequence]) -> SwitchManifest | Refusal:
        """Plan and apply; on a refusal nothing has changed."""
        present = self._present
        planned: SwitchManifest | Refusal | None = None
        for projected in (True, False):
            owners = self._new_owners(landed, projected=projected)
            wanted = self.wanted(landed, present.rule, owners)
            planned = self.plan(
                wanted, present.layout, present.epoch, avoid_borrowed=self._residency.avoid_borrowed
            )
            if isinstance(planned, SwitchManifest):
                self._residency.table.apply(planned)
                for sequence in landed:
                    sequence.owner = owners[sequence.seq]
                self.settle(landed)
                break
        assert planned is not None
        return planned

    def _new_owners(self, landed: Seq[Sequence], *, projected: bool) -> Owners:
        """Owners as promised, but for those whose pages lie elsewhere (the layout changed meanwhile)."""
        settled = self._roster.within(SeqState.RUNNING)
        chosen = self._owners.assign([*settled, *landed], self._present.rule, projected=projected)
        return {sequence.seq: chosen[sequence.seq] for sequence in landed}

    def _placement(self, sequence: Sequence, rule: LayoutRule, owners: Owners) -> KvPlacement:
        return rule.placement(
            num_ranks=self._residency.num_ranks,
            owner=owners.get(sequence.seq, sequence.owner),
            rotation=sequence.rotation,
        )
