"""One switch's copying ahead: what each ordinary step copies, and when the switching step is due.

Each full page of a running sequence is looked at once, oldest sequence first, and gets a row to come: to
ranks that will hold it and lack it, it is copied. Where one has no free slot, it is left to the switching
step.
Invariants: slots taken for copies are the first that go when somebody needs one (`Residency` takes them back
before it preempts); and the switching step comes in bounded time, whatever arrives meanwhile.
"""

from collections import Counter
from dataclasses import dataclass
from math import lcm

from splash_core.ids import PageId, RankId, SeqId, SlotId
from splash_core.layout.columns import SlotRows
from splash_core.layout.layout import RULES, KvPlacement, Layout, Matrices
from splash_core.layout.ownership import NO_SLOT
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Present
from splash_core.scheduling.mirror import Mirrors
from splash_core.scheduling.owners import NO_OWNERS, OwnerAssignment, Owners
from splash_core.scheduling.precopy_pace import PrecopyPace
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.scheduling.step import TableUpdate, TakenRows
from splash_core.switch.difference import weight_primitives
from splash_core.switch.evacuation import local_moves
from splash_core.switch.manifest import Primitive, SwitchManifest
from splash_core.switch.precopy import NoHeadroom, PageCopies, PrecopyBatch, find_headroom, plan_clearing

SPARE_BOUNDARIES = 8
PAGES_A_STEP = 256
"""Most pages that one step gives a row to come: making and telling them must not hold the step up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadStep:
    """What one ordinary step does for the switch to come."""

    batch: PrecopyBatch | None
    rows: tuple[TableUpdate, ...]
    """Rows to come, for the ranks to know before the switching step."""


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """How far a sequence has been looked at."""

    first_page: PageId
    """Of its table; another one means that it is computed again, after a preemption."""
    next: int = 0
    told: int = 0
    """So many of its first pages have had a row to come, and the ranks know it."""


class Precopy:
    """Made at the step boundary at which copying begins; its copies are in `PageTable.ahead`."""

    def __init__(
        self,
        layout: Layout,
        *,
        roster: Roster,
        residency: Residency,
        present: Present,
        mirrors: Mirrors,
        owners: OwnerAssignment,
        config: SchedulerConfig,
        pace: PrecopyPace,
    ) -> None:
        self.layout = layout
        self.fallback = ""
        """Why the rest moves without being copied ahead; empty while that goes well."""
        self.bytes_received = 0
        """By all ranks from other ranks, so far."""
        self.promised: Owners = NO_OWNERS
        """Owners in the destination that rows to come are made for."""
        self._rule = RULES[layout]
        self._roster = roster
        self._residency = residency
        self._present = present
        self._mirrors = mirrors
        self._owners = owners
        self._pace = pace
        self._yielded = pace.yielded
        self._staging_bytes = config.staging_bytes
        arena = residency.table.arena
        weights = weight_primitives(present.layout, layout, num_ranks=arena.num_ranks)
        self._gathered = tuple(m for m, primitive in weights.items() if primitive is Primitive.ALL_GATHER)
        self.fills: Matrices = frozenset(self._gathered)
        """Matrices whose borrowed slots must be clear of pages, and stay so, until the switch."""
        self._lent = present.rule.lends & self._rule.lends
        self._num_layers = arena.num_layers if self._gathered else 0
        self._num_gathered = 0
        rate, self._layer_bytes = config.precopy_bytes_per_step, arena.gather_bytes_per_layer(self._gathered)
        self._pages_a_step = max(rate // arena.slot_bytes, 1)
        self._layers_a_step = max(rate // max(self._layer_bytes, 1), 1)
        self._cursors: dict[SeqId, _Cursor] = {}
        self._caught_up = False
        self._boundaries_left = self._begin()

    @property
    def ready_layers(self) -> tuple[int, ...]:
        """Layers whose weights are in place, as long as no page has been put under them."""
        return () if self.under_weights else tuple(range(self._num_gathered))

    def due(self) -> bool:
        """True when the switching step should come now; to be asked once at each boundary."""
        due = self.falls_due
        # A step that has given way to handoffs does not count.
        self._boundaries_left += self._pace.yielded - self._yielded - 1
        self._yielded = self._pace.yielded
        return due

    @property
    def falls_due(self) -> bool:
        """What `due` will answer if nothing happens before."""
        if self.fallback or self._boundaries_left + self._pace.yielded <= self._yielded:
            return True
        if self._roster.going_on(SeqState.LANDED):
            # Its pages would all move in the switching step. At this boundary it begins to run, or to be
            # brought to where it will, and the next steps copy it ahead.
            return False
        running = self._running()
        left = sum(self._full_pages(s) - self._cursor(s).next for s in running)
        # Once caught up, a page of each is what steps add; a sequence that has come since is more.
        most = max(self._pages_a_step, len(running)) if self._caught_up else 0
        return left <= most and self._num_gathered == self._num_layers

    @property
    def under_weights(self) -> bool:
        """True while some page lies where weights will be."""
        return not all(pool.all_may_stay(self._rule.lends) for pool in self._residency.table.pools)

    def clear(self) -> SwitchManifest | None:
        """Move some pages out from where weights will be; None when there is nothing to move now."""
        if not self.under_weights:
            return None
        table = self._residency.table
        moves = plan_clearing(table, self._to_clear, lent=self._lent, capacity=self._pages_a_step)
        if isinstance(moves, NoHeadroom):
            self.fallback = str(moves)
        if isinstance(moves, NoHeadroom) or not moves:
            return None
        present = self._present
        manifest = local_moves(
            moves,
            arena=table.arena,
            layout=present.layout,
            epoch=present.epoch,
            staging_bytes=self._staging_bytes,
        )
        table.apply(manifest)
        return manifest

    def next_step(self) -> AheadStep | None:
        """What the step does whose rows have their pages; None when there is nothing to do."""
        if self.fallback or self.under_weights:
            return None
        if self._num_gathered < self._num_layers:
            first, count = self._num_gathered, self._pace.take(self._layer_bytes)
            if not count:
                return None
            self._num_gathered = min(first + count, self._num_layers)
            layers = tuple(range(first, self._num_gathered))
            return AheadStep(batch=PrecopyBatch(weight_layers=layers, gathered=self._gathered), rows=())
        count = self._pace.take(self._residency.table.arena.slot_bytes)
        if not count:
            return None
        copies = PageCopies(count)
        rows: list[TableUpdate] = []
        left, self._caught_up = PAGES_A_STEP, True
        for sequence in self._running():
            # All are tried: where one has used up a rank's share, others may use another rank's.
            cursor = self._cursor(sequence)
            left += cursor.next
            told = self._arrange(sequence, copies, left - cursor.next)
            left -= cursor.next
            rows += [told] if told.slots else []
            self._caught_up &= cursor.next == self._full_pages(sequence)
        chunks = copies.chunks(capacity=self._staging_bytes // self._residency.table.arena.slot_bytes)
        if not chunks and not rows:
            return None
        return AheadStep(batch=PrecopyBatch(chunks=chunks) if chunks else None, rows=tuple(rows))

    def told(self) -> tuple[TakenRows, ...]:
        """Rows to come that stand and that the ranks know: of each sequence up to the first that does not."""
        ahead = self._residency.table.ahead
        told: list[TakenRows] = []
        for sequence in self._running():
            known = sequence.pages[: self._cursor(sequence).told]
            count = next((index for index, page in enumerate(known) if page not in ahead), len(known))
            told += [TakenRows(seq=sequence.seq, num_pages=count)] if count else []
        return tuple(told)

    def _begin(self) -> int:
        """Look for room for second copies; returns at how many boundaries the switch may still wait."""
        table = self._residency.table
        needed: Counter[RankId] = Counter()
        for sequence in self._running():
            here, there = self._residency.placement(sequence), self._placement(sequence)
            needed += second_copies(here, there, self._full_pages(sequence))
        for rank, pool in enumerate(table.pools):
            needed[RankId(rank)] += sum(map(pool.is_used, self._to_clear))
        lack = find_headroom(table, needed, lent=self._lent, what="second copies of its pages")
        self.fallback = "" if lack is None else str(lack)
        steps = -(-max(needed.values(), default=0) // self._pages_a_step)
        steps += -(-self._num_layers // self._layers_a_step)
        steps += sum(map(self._full_pages, self._running())) // PAGES_A_STEP
        return 2 * steps + SPARE_BOUNDARIES

    def _running(self) -> list[Sequence]:
        """Sequences whose pages are in place and known to the ranks, each with a cursor and an owner.

        One that runs no further row is left out: its pages may go, or be pinned, while a step copies them.
        """
        running = [
            sequence
            for sequence in self._roster.going_on(SeqState.RUNNING)
            if sequence.pages and sequence.remaining and self._mirrors.knows(sequence.seq)
        ]
        fresh = [s for s in running if self._is_fresh(s)]
        if fresh:
            new = {sequence.seq for sequence in fresh}
            kept = {seq: owner for seq, owner in self.promised.items() if seq not in new}
            self.promised = self._owners.assign(running, self._rule, projected=True, promised=kept)
            self._cursors |= {s.seq: _Cursor(first_page=s.pages[0]) for s in fresh}
        return running

    def _is_fresh(self, sequence: Sequence) -> bool:
        cursor = self._cursors.get(sequence.seq)
        return cursor is None or cursor.first_page != sequence.pages[0]

    def _cursor(self, sequence: Sequence) -> _Cursor:
        return self._cursors[sequence.seq]

    def _placement(self, sequence: Sequence) -> KvPlacement:
        return self._rule.placement(
            num_ranks=self._residency.num_ranks,
            owner=self.promised[sequence.seq],
            rotation=sequence.rotation,
        )

    def _full_pages(self, sequence: Sequence) -> int:
        """Pages that no row of this or a later step is written to."""
        return sequence.cached // self._residency.table.arena.page_size

    def _arrange(self, sequence: Sequence, copies: PageCopies, most: int) -> TableUpdate:
        """Look at up to `most` further pages of a sequence, as far as the step carries their copies.

        Returns:
            Rows to come that follow those that the ranks know.
        """
        table, cursor, placement = self._residency.table, self._cursor(sequence), self._placement(sequence)
        first, end = cursor.told, min(self._full_pages(sequence), cursor.next + most)
        rows: list[tuple[int, ...]] = []
        while cursor.next < end:
            page, ranks = sequence.pages[cursor.next], sorted(placement.ranks_of_page(cursor.next))
            holders = table.copies(page)
            if table.is_pinned(page):  # it is being pushed: it stays here, and goes with the switching step
                cursor.next += 1
                continue
            if not copies.carries(holders, ranks):
                break
            row = table.plan_ahead(page, ranks, lent=self._lent)
            if row is not None:
                copies.add(page, holders, row)
                self._residency.note_borrowed_slots((rank, row.slots[rank]) for rank in row.made)
                if cursor.told == cursor.next:
                    cursor.told += 1
                    rows.append(tuple(row.slots.get(RankId(r), NO_SLOT) for r in range(table.num_ranks)))
            cursor.next += 1
        told = SlotRows.of(rows, num_ranks=table.num_ranks)
        return TableUpdate(seq=sequence.seq, first_page=first, slots=told)

    @property
    def _to_clear(self) -> list[SlotId]:
        lenders = self._residency.table.arena.lenders
        return [slot for matrix in self._gathered for slot in lenders[matrix]]


def second_copies(here: KvPlacement, there: KvPlacement, pages: int) -> Counter[RankId]:
    """How many of a sequence's first `pages` pages each rank lacks in another placement."""
    needed: Counter[RankId] = Counter()
    period = lcm(len(here.owners), len(there.owners))
    for index in range(min(period, pages)):
        held = here.ranks_of_page(index)
        for rank in there.ranks_of_page(index):
            if rank not in held:
                needed[rank] += (pages - index - 1) // period + 1
    return needed
