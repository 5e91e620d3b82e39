"""One switch's copying ahead: what to copy in each ordinary step, and when the switching step is due.

Each full page of a running sequence is looked at once, oldest sequence first: it is copied where the
destination lacks it and has a free slot, else it is left to the switching step. Invariants: slots taken for
copies are the last that anybody has to do without (`Residency` takes them back before it preempts); and the
switching step comes in bounded time, whatever arrives meanwhile.
"""

from collections import Counter
from collections.abc import Sequence as Seq

from splash_core.ids import PageId, RankId, SeqId, SlotId
from splash_core.layout.layout import RULES, KvPlacement, Layout, Matrices
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.owners import OwnerAssignment, Owners
from splash_core.scheduling.residency import Present, Residency
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.switch.difference import weight_primitives
from splash_core.switch.evacuation import local_moves
from splash_core.switch.manifest import Primitive, SwitchManifest
from splash_core.switch.precopy import NoHeadroom, PageCopies, PrecopyBatch, find_headroom, plan_clearing

_SPARE_BOUNDARIES = 8


class Precopy:
    """Made at the step boundary at which copying begins; its copies are in `PageTable.ahead`."""

    def __init__(
        self,
        layout: Layout,
        *,
        roster: Roster,
        residency: Residency,
        present: Present,
        owners: OwnerAssignment,
        config: SchedulerConfig,
    ) -> None:
        self.layout = layout
        self.fallback = ""
        """Why the rest moves without being copied ahead; empty while that goes well."""
        self.bytes_received = 0
        """By all ranks from other ranks, so far."""
        self.promised: Owners = {}
        """Owners in the destination that copies have been made for."""
        self._rule = RULES[layout]
        self._roster = roster
        self._residency = residency
        self._present = present
        self._owners = owners
        self._staging_bytes = config.staging_bytes
        arena = residency.table.arena
        weights = weight_primitives(present.layout, layout, num_ranks=arena.num_ranks)
        self._gathered = tuple(m for m, primitive in weights.items() if primitive is Primitive.ALL_GATHER)
        self.fills: Matrices = frozenset(self._gathered)
        """Matrices whose borrowed slots must be clear of pages, and stay so, until the switch."""
        self._lent = present.rule.lends & self._rule.lends
        self._num_layers = arena.num_layers if self._gathered else 0
        self._num_gathered = 0
        self._pages_a_step = max(config.precopy_bytes_per_step // arena.slot_bytes, 1)
        self._layers_a_step = max(
            config.precopy_bytes_per_step // max(arena.gather_bytes_per_layer(self._gathered), 1), 1
        )
        self._cursors: dict[SeqId, tuple[PageId, int]] = {}
        self._caught_up = False
        self._boundaries_left = self._begin()

    @property
    def ready_layers(self) -> tuple[int, ...]:
        """Layers whose weights are in place, as long as no page has been put under them."""
        return () if self._under_weights else tuple(range(self._num_gathered))

    def due(self) -> bool:
        """True when the switching step should come now; to be asked once at each boundary."""
        self._boundaries_left -= 1
        if self.fallback or self._caught_up or self._boundaries_left < 0:
            return True
        left = any(self._next(sequence, self._placement(sequence)) for sequence in self._running())
        return not left and self._num_gathered == self._num_layers

    def clear(self) -> SwitchManifest | None:
        """Move some pages out from where weights will be; None when there is nothing to move now."""
        if not self._under_weights:
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

    def next_batch(self) -> PrecopyBatch | None:
        """What the step copies whose rows have their pages; None when there is nothing to copy."""
        if self.fallback or self._under_weights:
            return None
        if self._num_gathered < self._num_layers:
            first = self._num_gathered
            self._num_gathered = min(first + self._layers_a_step, self._num_layers)
            layers = tuple(range(first, self._num_gathered))
            return PrecopyBatch(weight_layers=layers, gathered=self._gathered)
        table = self._residency.table
        copies = PageCopies(table, capacity=self._pages_a_step, lent=self._lent)
        # All are tried: where one has used up a rank's share, others may use another rank's.
        unfinished = [sequence for sequence in self._running() if not self._copy(sequence, copies)]
        self._caught_up = not unfinished
        chunks = copies.chunks(capacity=self._staging_bytes // table.arena.slot_bytes)
        return PrecopyBatch(chunks=chunks) if chunks else None

    def _begin(self) -> int:
        """Look for room for second copies; returns at how many boundaries the switch may still wait."""
        table = self._residency.table
        needed: Counter[RankId] = Counter()
        for sequence in self._running():
            placement = self._placement(sequence)
            for index in range(self._full_pages(sequence)):
                needed.update(self._missing(sequence, index, placement))
        for rank, pool in enumerate(table.pools):
            needed[RankId(rank)] += sum(map(pool.is_used, self._to_clear))
        lack = find_headroom(table, needed, lent=self._lent, what="second copies of its pages")
        self.fallback = "" if lack is None else str(lack)
        steps = -(-max(needed.values(), default=0) // self._pages_a_step)
        steps += -(-self._num_layers // self._layers_a_step)
        return 2 * steps + _SPARE_BOUNDARIES

    def _running(self) -> list[Sequence]:
        """Sequences whose pages are in place, each with an owner in the destination."""
        running = self._roster.within(SeqState.RUNNING)
        if any(sequence.seq not in self.promised for sequence in running):
            chosen = self._owners.assign(running, self._rule, projected=True, promised=self.promised)
            self.promised = {**self.promised, **chosen}
        return running

    def _placement(self, sequence: Sequence) -> KvPlacement:
        return self._rule.placement(
            num_ranks=self._residency.num_ranks,
            owner=self.promised[sequence.seq],
            rotation=sequence.rotation,
        )

    def _full_pages(self, sequence: Sequence) -> int:
        """Pages that no row of this or a later step is written to."""
        return sequence.cached // self._residency.table.arena.page_size

    def _missing(self, sequence: Sequence, index: int, placement: KvPlacement) -> list[RankId]:
        """Ranks that lack a page in the destination, copies ahead counted."""
        table, page = self._residency.table, sequence.pages[index]
        held = table.ranks(page)
        return [
            rank
            for rank in placement.ranks_of_page(index)
            if rank not in held and not table.ahead.has(page, rank)
        ]

    def _next(self, sequence: Sequence, placement: KvPlacement) -> tuple[PageId, Seq[RankId]] | None:
        """The sequence's next page to copy, and ranks with room that lack it; moves its cursor there."""
        if not sequence.pages:
            return None
        first, start = self._cursors.get(sequence.seq, (None, 0))
        if first != sequence.pages[0]:
            start = 0  # computed again after a preemption
        table, full = self._residency.table, self._full_pages(sequence)
        for index in range(start, full):
            ranks = [
                rank
                for rank in self._missing(sequence, index, placement)
                if table.free_slots(rank, lent=self._lent)
            ]
            if ranks:
                self._cursors[sequence.seq] = sequence.pages[0], index
                return sequence.pages[index], ranks
        self._cursors[sequence.seq] = sequence.pages[0], full
        return None

    def _copy(self, sequence: Sequence, copies: PageCopies) -> bool:
        """Copy as many of the sequence's pages as the batch carries; True when none is left."""
        placement = self._placement(sequence)
        while (found := self._next(sequence, placement)) is not None:
            page, ranks = found
            if not all(copies.add(page, rank) for rank in ranks):
                return False
        return True

    @property
    def _under_weights(self) -> bool:
        """True while some page lies where weights will be."""
        return not all(pool.all_may_stay(self._rule.lends) for pool in self._residency.table.pools)

    @property
    def _to_clear(self) -> list[SlotId]:
        lenders = self._residency.table.arena.lenders
        return [slot for matrix in self._gathered for slot in lenders[matrix]]
