"""Which rank owns each sequence in a layout to come."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType

from splash_core.ids import RankId, SeqId
from splash_core.layout.layout import KvHistory, LayoutRule
from splash_core.scheduling.holding import Holding, Present
from splash_core.scheduling.sequence import Roster, SeqState, Sequence

Owners = Mapping[SeqId, RankId]
NO_OWNERS: Owners = MappingProxyType({})


class OwnerAssignment:
    """Keeps owners that hold a whole history; balances the ranks with the others."""

    def __init__(self, *, roster: Roster, residency: Holding, present: Present) -> None:
        self._roster = roster
        self._residency = residency
        self._present = present

    def assign(
        self, sequences: Seq[Sequence], rule: LayoutRule, *, projected: bool, promised: Owners = NO_OWNERS
    ) -> dict[SeqId, RankId]:
        """Owners of `sequences` under `rule`.

        Args:
            sequences: those that may move.
            rule: the layout to come.
            projected: balance what sequences will hold; otherwise what they hold now, which fits better.
            promised: owners that are chosen already, for sequences that have no history in one place.
        """
        if rule.history is not KvHistory.OWNER:
            return {sequence.seq: sequence.owner for sequence in sequences}
        residency = self._residency
        load = self._fixed_load()
        keep = self._present.rule.history is KvHistory.OWNER
        owners: dict[SeqId, RankId] = {}
        homeless: list[tuple[int, Sequence, list[int]]] = []
        for sequence in sequences:
            held = residency.copies_per_rank(sequence)
            weight = residency.pages_for(sequence.held_tokens if projected else sequence.length)
            if keep and held[sequence.owner] == sequence.num_pages:
                owners[sequence.seq] = sequence.owner
                load[sequence.owner] += weight
            elif sequence.seq in promised:
                owners[sequence.seq] = promised[sequence.seq]
                load[promised[sequence.seq]] += weight
            else:
                homeless.append((weight, sequence, held))
        # The largest first: what comes last can still level the ranks.
        for weight, sequence, held in sorted(homeless, key=lambda entry: (-entry[0], entry[1].seq)):
            rank = min(range(len(load)), key=lambda rank: (load[rank], -held[rank], rank))
            owners[sequence.seq] = RankId(rank)
            load[rank] += weight
        return owners

    def _fixed_load(self) -> list[int]:
        """Pages per rank that stay where they are."""
        load = [0] * self._residency.num_ranks
        for sequence in self._roster.within(SeqState.LEASED, SeqState.HANDOFF):
            for rank, pages in enumerate(self._residency.copies_per_rank(sequence)):
                load[rank] += pages
        return load
