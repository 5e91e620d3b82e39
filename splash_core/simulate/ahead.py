"""One switch's copying ahead in a group that counts pages: `scheduling.precopy` without slots.

Turns, order, room and the moment at which the switching step is due are the product's. Left out is what only
slots have: pages that lie where weights will be are never moved away here, since counted pages lie in
ordinary slots as long as those suffice.
"""

from collections import Counter
from dataclasses import dataclass

from splash_core.cost.model import CostModel
from splash_core.cost.switch import SwitchBytes, switch_bytes
from splash_core.ids import PageId, RankId, SeqId, SlotId
from splash_core.layout.ahead import RowToCome
from splash_core.layout.layout import RULES, KvPlacement, Layout
from splash_core.layout.ownership import PageCopy
from splash_core.scheduling.holding import Present
from splash_core.scheduling.owners import NO_OWNERS, OwnerAssignment, Owners
from splash_core.scheduling.precopy import PAGES_A_STEP, SPARE_BOUNDARIES, second_copies
from splash_core.scheduling.precopy_pace import PrecopyPace
from splash_core.scheduling.sequence import Roster, SeqState
from splash_core.simulate.counts import CountedSequence, Counts
from splash_core.switch.precopy import PageCopies

_ANY_SLOT = SlotId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """What is copied ahead, in bytes that a rank receives."""

    page: int
    """All layers."""
    layer_weights: int
    """Missing weights of one layer; 0 where the switch gathers none."""
    num_layers: int

    @classmethod
    def of(cls, model: CostModel, page_size: int, layout_from: Layout, layout_to: Layout) -> "Units":
        """Of a switch in groups that a model predicts, with so many tokens a page."""
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


@dataclass(slots=True)
class _Cursor:
    """How far a sequence has been looked at, in which of its lives."""

    life: int
    next: int = 0


class CountedAhead:
    """Made at the step boundary at which copying begins; its copies are in `Counts.ahead`."""

    def __init__(
        self,
        layout: Layout,
        *,
        roster: Roster,
        counts: Counts,
        present: Present,
        owners: OwnerAssignment,
        pace: PrecopyPace,
        rate: int,
        units: Units,
    ) -> None:
        self.layout = layout
        self.promised: Owners = NO_OWNERS
        """Owners in the destination that copies are made for."""
        self.fallback = False
        """True when second copies do not fit: the rest moves without being copied ahead."""
        self._rule = RULES[layout]
        self._roster = roster
        self._counts = counts
        self._owners = owners
        self._pace = pace
        self._yielded = pace.yielded
        self._units = units
        self._pages_a_step = max(rate // units.page, 1)
        self._layers_a_step = max(rate // max(units.layer_weights, 1), 1)
        self._room = min(counts.capacity(layout).pages, counts.capacity(present.layout).pages)
        """Pages of a rank in slots that neither layout needs for weights."""
        self._num_layers = units.num_layers if units.layer_weights else 0
        self._num_gathered = 0
        self._cursors: dict[SeqId, _Cursor] = {}
        self._caught_up = False
        self._boundaries_left = self._begin()

    @property
    def missing_layers(self) -> int:
        """Layers whose weights the switching step still gathers."""
        return self._num_layers - self._num_gathered

    def due(self) -> bool:
        """True when the switching step should come now; to be asked once at each boundary."""
        due = self._falls_due()
        self._boundaries_left += self._pace.yielded - self._yielded - 1
        self._yielded = self._pace.yielded
        return due

    def next_step(self) -> int | None:
        """What the step whose rows have their pages copies ahead, in bytes; None when nothing is done."""
        if self.fallback:
            return None
        if self._num_gathered < self._num_layers:
            count = self._pace.take(self._units.layer_weights)
            if not count:
                return None
            first, self._num_gathered = self._num_gathered, min(self._num_gathered + count, self._num_layers)
            return (self._num_gathered - first) * self._units.layer_weights
        count = self._pace.take(self._units.page)
        return self._copy_pages(count) if count else None

    def _falls_due(self) -> bool:
        if self.fallback or self._boundaries_left + self._pace.yielded <= self._yielded:
            return True
        if self._roster.going_on(SeqState.LANDED):
            return False
        running = self._running()
        left = sum(self._full_pages(s) - self._cursors[s.seq].next for s in running)
        most = max(self._pages_a_step, len(running)) if self._caught_up else 0
        return left <= most and self._num_gathered == self._num_layers

    def _begin(self) -> int:
        """Look for room for second copies; returns at how many boundaries the switch may still wait."""
        needed: Counter[RankId] = Counter()
        running = self._running()
        for sequence in running:
            here, there = self._counts.placement(sequence), self._placement(sequence)
            needed += second_copies(here, there, self._full_pages(sequence))
        used = self._counts.used
        self.fallback = any(used[rank] + count > self._room for rank, count in needed.items()) or (
            self._num_layers > 0 and max(used) > self._room
        )
        steps = -(-max(needed.values(), default=0) // self._pages_a_step)
        steps += -(-self._num_layers // self._layers_a_step)
        steps += sum(map(self._full_pages, running)) // PAGES_A_STEP
        return 2 * steps + SPARE_BOUNDARIES

    def _running(self) -> list[CountedSequence]:
        """Sequences that the ranks know, each with a cursor and an owner."""
        running: list[CountedSequence] = []
        for sequence in self._roster.going_on(SeqState.RUNNING):
            assert isinstance(sequence, CountedSequence)
            if sequence.known_to_ranks and sequence.held_pages and sequence.remaining:
                running.append(sequence)
        fresh = {s.seq: s for s in running if self._is_fresh(s)}
        if fresh:
            kept = {seq: owner for seq, owner in self.promised.items() if seq not in fresh}
            self.promised = self._owners.assign(running, self._rule, projected=True, promised=kept)
            self._cursors |= {seq: _Cursor(life=sequence.life) for seq, sequence in fresh.items()}
        return running

    def _is_fresh(self, sequence: CountedSequence) -> bool:
        cursor = self._cursors.get(sequence.seq)
        return cursor is None or cursor.life != sequence.life

    def _copy_pages(self, count: int) -> int | None:
        copies, arranged = PageCopies(count), 0
        left, self._caught_up = PAGES_A_STEP, True
        for sequence in self._running():
            cursor = self._cursors[sequence.seq]
            before = cursor.next
            arranged += self._arrange(sequence, cursor, copies, left)
            left -= cursor.next - before
            self._caught_up &= cursor.next == self._full_pages(sequence)
        if not arranged:
            return None
        received = Counter(move.dst for chunk in copies.chunks(capacity=1 << 30) for move in chunk)
        return max(received.values(), default=0) * self._units.page

    def _arrange(self, sequence: CountedSequence, cursor: _Cursor, copies: PageCopies, most: int) -> int:
        """Look at up to `most` further pages; returns how many get a row to come."""
        end, arranged = min(self._full_pages(sequence), cursor.next + most), 0
        here, there = self._counts.placement(sequence), self._placement(sequence)
        while cursor.next < end:
            index = cursor.next
            held, ranks = here.ranks_of_page(index), sorted(there.ranks_of_page(index))
            holders = [PageCopy(rank, _ANY_SLOT, 0) for rank in sorted(held)]
            if not copies.carries(holders, ranks):
                break
            made = [rank for rank in ranks if rank not in held]
            if all(self._free(rank) > 0 for rank in made):
                self._counts.ahead.add(sequence.seq, index, made)
                copies.add(PageId(index), holders, RowToCome(dict.fromkeys(ranks, _ANY_SLOT), tuple(made)))
                arranged += 1
            cursor.next += 1
        return arranged

    def _free(self, rank: RankId) -> int:
        return self._room - self._counts.used[rank] - self._counts.ahead.on_rank[rank]

    def _placement(self, sequence: CountedSequence) -> KvPlacement:
        owner = self.promised[sequence.seq]
        return self._counts.placement_in(self.layout, sequence, owner)

    def _full_pages(self, sequence: CountedSequence) -> int:
        """Pages that no row of this or a later step is written to."""
        return sequence.cached // self._counts.page_size
