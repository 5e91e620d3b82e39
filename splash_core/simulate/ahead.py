"""One switch's copying ahead in a group that counts pages: `scheduling.precopy` without slots.

Turns, order and the moment at which the switching step is due are the product's own (`precopy_course`), room
is what its slots would have. Left out is what only slots have: pages that lie where weights will be are never
moved away here, since counted pages lie in ordinary slots as long as those suffice.
"""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from splash_core.cost.model import CostModel
from splash_core.cost.switch import SwitchBytes, switch_bytes
from splash_core.ids import PageId, RankId, SlotId
from splash_core.layout.ahead import RowToCome
from splash_core.layout.layout import RULES, Layout
from splash_core.layout.ownership import PageCopy
from splash_core.scheduling.holding import Present
from splash_core.scheduling.owners import OwnerAssignment
from splash_core.scheduling.precopy_course import HeldPage, PrecopyCourse, PrecopyUnits
from splash_core.scheduling.precopy_pace import PrecopyPace
from splash_core.scheduling.sequence import Roster, Sequence
from splash_core.simulate.counts import CountedHolding, CountedSequence
from splash_core.switch.precopy import PageCopies

_ANY_SLOT = SlotId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units(PrecopyUnits):
    """Those of a switch in groups that a model predicts."""

    @classmethod
    def of(cls, model: CostModel, page_size: int, layout_from: Layout, layout_to: Layout) -> "Units":
        """With so many tokens a page."""
        spec, precision = model.spec, model.precision
        rules, nothing = (RULES[layout_from], RULES[layout_to]), [0] * model.num_ranks
        return cls(
            page=page_size * precision.kv_token_bytes(spec),
            layer_weights=switch_bytes(spec, precision, *rules, owner_tokens=nothing).weights,
            num_layers=spec.num_mla_layers,
        )

    def rest(self, layers: int, pages: int) -> SwitchBytes:
        """What is left to the switching step, per layer: the weights of some layers, and pages."""
        weights = layers * self.layer_weights // self.num_layers
        return SwitchBytes(weights=weights, kv=pages * self.page // self.num_layers)


class CountedAhead(PrecopyCourse[CountedSequence]):
    """Its copies are in `CountedHolding.ahead`."""

    def __init__(
        self,
        layout: Layout,
        *,
        roster: Roster,
        counts: CountedHolding,
        present: Present,
        owners: OwnerAssignment,
        pace: PrecopyPace,
        rate: int,
        units: Units,
    ) -> None:
        super().__init__(
            layout,
            roster=roster,
            holding=counts,
            owners=owners,
            pace=pace,
            units=units,
            rate=rate,
            num_gathered_layers=units.num_layers if units.layer_weights else 0,
        )
        self._counts = counts
        self._room = min(counts.capacity(layout).pages, counts.capacity(present.layout).pages)
        """Pages of a rank in slots that neither layout needs for weights."""
        self._find_room()

    def next_step(self) -> int | None:
        """What the step whose rows have their pages copies ahead, in bytes; None when nothing is done."""
        if self.fallback:
            return None
        if self.missing_layers:
            return len(self._gather_layers()) * self._units.layer_weights or None
        count = self._pace.take(self._units.page)
        copies = PageCopies(count)
        if not count or not self._look_further(copies):
            return None
        received = Counter(move.dst for chunk in copies.chunks(capacity=1 << 30) for move in chunk)
        return max(received.values(), default=0) * self._units.page

    def _find_room(self) -> None:
        """For second copies, and for weights."""
        used, needed = self._counts.used, self._needed()
        if any(used[rank] + count > self._room for rank, count in needed.items()):
            self.fallback = "second copies do not fit"
        elif self.missing_layers and max(used) > self._room:
            self.fallback = "pages lie where weights will be"
        self._begin(needed)

    def _known(self, sequence: Sequence) -> CountedSequence | None:
        assert isinstance(sequence, CountedSequence)
        return sequence if sequence.known_to_ranks and sequence.held_pages else None

    def _life(self, sequence: CountedSequence) -> int:
        return sequence.life

    def _held(self, sequence: CountedSequence, index: int) -> HeldPage:
        held = self._counts.placement(sequence).ranks_of_page(index)
        return HeldPage(PageId(index), [PageCopy(rank, _ANY_SLOT, 0) for rank in sorted(held)])

    def _make_row(self, sequence: CountedSequence, index: int, ranks: Seq[RankId]) -> RowToCome | None:
        held = self._counts.placement(sequence).ranks_of_page(index)
        made = [rank for rank in ranks if rank not in held]
        if any(self._free(rank) <= 0 for rank in made):
            return None
        self._counts.ahead.add(sequence.seq, index, made)
        return RowToCome(dict.fromkeys(ranks, _ANY_SLOT), tuple(made))

    def _free(self, rank: RankId) -> int:
        return self._room - self._counts.used[rank] - self._counts.ahead.on_rank[rank]
