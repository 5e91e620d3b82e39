"""Where counted pages go: relocation of landed prompts, and switches.

Invariant: a move that does not fit changes nothing; owners are the ones that the product would choose.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType

from splash_core.ids import RankId, SeqId
from splash_core.layout.layout import RULES, KvHistory, Layout
from splash_core.scheduling.holding import Present
from splash_core.scheduling.owners import NO_OWNERS, OwnerAssignment, Owners
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.simulate.counts import CountedHolding, CountedSequence

_NOTHING_MADE: Mapping[SeqId, Seq[int]] = MappingProxyType({})


class Placing:
    """Moves pages of one group."""

    def __init__(self, *, roster: Roster, counts: CountedHolding, present: Present) -> None:
        self.owners = OwnerAssignment(roster=roster, residency=counts, present=present)
        self._roster = roster
        self._counts = counts
        self._present = present

    def relocate(self) -> int:
        """Let landed prompts run, as many as fit where they are wanted; pages that the fullest rank gets."""
        astray: list[CountedSequence] = []
        for sequence in self._roster.going_on(SeqState.LANDED):
            assert isinstance(sequence, CountedSequence)
            if self._counts.in_place(sequence):
                sequence.state = SeqState.RUNNING
            else:
                astray.append(sequence)
        while astray:
            before = [self._counts.copies_per_rank(sequence) for sequence in astray]
            running = _counted(self._roster.within(SeqState.RUNNING))
            if self._place([*running, *astray], astray, self._present.layout, NO_OWNERS):
                return max(self._received(astray, before))
            if len(astray) > 1:
                astray.pop()
            elif not self._counts.preempt_younger(astray[0], self._counts.placement(astray[0]).owners):
                return 0
        return 0

    def switch(
        self, layout: Layout, *, promised: Owners = NO_OWNERS, made: Mapping[SeqId, Seq[int]] = _NOTHING_MADE
    ) -> int | None:
        """Put all histories where `layout` wants them, and make it the present one.

        Args:
            layout: the layout to come.
            promised: owners that are chosen already.
            made: of each sequence, copies that lie on each rank beside its pages, `[T]`.

        Returns:
            Further pages that the fullest rank receives; None, and no change, where they do not fit.
        """
        moved = _counted(sequence for sequence in self._roster if sequence.movable)
        before = [self._counts.copies_per_rank(sequence) for sequence in moved]
        if not self._place(moved, moved, layout, promised):
            return None
        self._present.layout = layout
        for sequence, held in zip(moved, before, strict=True):
            for rank, count in enumerate(made.get(sequence.seq, ())):
                held[rank] += count
        return max(self._received(moved, before))

    def _received(self, moved: Seq[CountedSequence], before: Seq[Seq[int]]) -> list[int]:
        got = [0] * self._counts.num_ranks
        for sequence, held in zip(moved, before, strict=True):
            for rank, count in enumerate(self._counts.copies_per_rank(sequence)):
                got[rank] += max(count - held[rank], 0)
        return got

    def _place(
        self,
        all_of: Seq[CountedSequence],
        moved: Seq[CountedSequence],
        layout: Layout,
        promised: Owners,
    ) -> bool:
        """Choose owners for `all_of` and put `moved` where `layout` wants them; False: no room, no change."""
        rule, counts = RULES[layout], self._counts
        for projected in (True, False):
            owners = self.owners.assign(all_of, rule, projected=projected, promised=promised)
            change = [0] * counts.num_ranks
            for sequence in moved:
                placement = counts.placement_in(layout, sequence, owners[sequence.seq])
                for rank, count in enumerate(counts.change(sequence, placement, sequence.held_pages)):
                    change[rank] += count
            if counts.fits(layout, change):
                self._settle(moved, layout, owners)
                return True
            if rule.history is not KvHistory.OWNER:
                break
        return False

    def _settle(self, moved: Seq[CountedSequence], layout: Layout, owners: dict[SeqId, RankId]) -> None:
        for sequence in moved:
            sequence.owner = owners[sequence.seq]
            placement = self._counts.placement_in(layout, sequence, sequence.owner)
            self._counts.vacate(self._counts.change(sequence, placement, sequence.held_pages))
            self._counts.take(sequence, placement, sequence.held_pages)
            sequence.state = SeqState.RUNNING


def _counted(sequences: Iterable[Sequence]) -> list[CountedSequence]:
    return [sequence for sequence in sequences if isinstance(sequence, CountedSequence)]
