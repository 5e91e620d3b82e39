"""One switch's copying ahead in a group with slots: what each ordinary step copies, and tells the ranks.

Invariant: slots taken for copies are the first that go when somebody needs one (`Residency` takes them back
before it preempts).
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from splash_core.ids import PageId, RankId, SeqId, SlotId
from splash_core.layout.ahead import RowToCome
from splash_core.layout.columns import SlotRows
from splash_core.layout.layout import Layout, Matrices
from splash_core.layout.ownership import NO_SLOT
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Present
from splash_core.scheduling.mirror import MirrorBook
from splash_core.scheduling.owners import OwnerAssignment
from splash_core.scheduling.precopy_course import HeldPage, PrecopyCourse, PrecopyUnits
from splash_core.scheduling.precopy_pace import PrecopyPace
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.sequence import Roster, Sequence
from splash_core.scheduling.step import TableUpdate, TakenRows
from splash_core.switch.difference import weight_primitives
from splash_core.switch.evacuation import local_moves
from splash_core.switch.manifest import Primitive, SwitchManifest
from splash_core.switch.precopy import NoHeadroom, PageCopies, PrecopyBatch, find_headroom, plan_clearing


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadStep:
    """What one ordinary step does for the switch to come."""

    batch: PrecopyBatch | None
    rows: tuple[TableUpdate, ...]
    """Rows to come, for the ranks to know before the switching step."""


@dataclass(slots=True)
class _NewRows:
    """Rows to come of one sequence that follow those that the ranks know."""

    first_page: int
    slots: list[tuple[int, ...]]


class Precopy(PrecopyCourse[Sequence]):
    """Its copies are in `PageTable.ahead`."""

    def __init__(
        self,
        layout: Layout,
        *,
        roster: Roster,
        residency: Residency,
        present: Present,
        mirrors: MirrorBook,
        owners: OwnerAssignment,
        config: SchedulerConfig,
        pace: PrecopyPace,
    ) -> None:
        arena = residency.table.arena
        weights = weight_primitives(present.layout, layout, num_ranks=arena.num_ranks)
        self._gathered = tuple(m for m, primitive in weights.items() if primitive is Primitive.ALL_GATHER)
        super().__init__(
            layout,
            roster=roster,
            holding=residency,
            owners=owners,
            pace=pace,
            units=PrecopyUnits(
                page=arena.slot_bytes,
                layer_weights=arena.gather_bytes_per_layer(self._gathered),
                num_layers=arena.num_layers,
            ),
            rate=config.precopy_bytes_per_step,
            num_gathered_layers=arena.num_layers if self._gathered else 0,
        )
        self.bytes_received = 0
        """By all ranks from other ranks, so far."""
        self.fills: Matrices = frozenset(self._gathered)
        """Matrices whose borrowed slots must be clear of pages, and stay so, until the switch."""
        self._residency = residency
        self._present = present
        self._mirrors = mirrors
        self._staging_bytes = config.staging_bytes
        self._lent = present.rule.lends & self._rule.lends
        self._new_rows: dict[SeqId, _NewRows] = {}
        """Of the step that is being planned."""
        self._find_room()

    @property
    def ready_layers(self) -> tuple[int, ...]:
        """Layers whose weights are in place, as long as no page has been put under them."""
        return () if self.under_weights else tuple(range(self._num_gathered))

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
        if self.missing_layers:
            layers = tuple(self._gather_layers())
            batch = PrecopyBatch(weight_layers=layers, gathered=self._gathered)
            return AheadStep(batch=batch, rows=()) if layers else None
        count = self._pace.take(self._units.page)
        if not count:
            return None
        copies, self._new_rows = PageCopies(count), {}
        num_ranks = self._residency.num_ranks
        self._look_further(copies)
        rows = tuple(
            TableUpdate(seq=seq, first_page=new.first_page, slots=SlotRows.of(new.slots, num_ranks=num_ranks))
            for seq, new in self._new_rows.items()
        )
        chunks = copies.chunks(capacity=self._staging_bytes // self._units.page)
        if not chunks and not rows:
            return None
        return AheadStep(batch=PrecopyBatch(chunks=chunks) if chunks else None, rows=rows)

    def told(self) -> tuple[TakenRows, ...]:
        """Rows to come that stand and that the ranks know: of each sequence up to the first that does not."""
        ahead = self._residency.table.ahead
        told: list[TakenRows] = []
        for sequence in self._running():
            known = sequence.pages[: self._cursors[sequence.seq].rows]
            count = next((index for index, page in enumerate(known) if page not in ahead), len(known))
            told += [TakenRows(seq=sequence.seq, num_pages=count)] if count else []
        return tuple(told)

    def _find_room(self) -> None:
        """For second copies, and for what lies where weights will be."""
        table, needed = self._residency.table, self._needed()
        for rank, pool in enumerate(table.pools):
            needed[RankId(rank)] += sum(map(pool.is_used, self._to_clear))
        lack = find_headroom(table, needed, lent=self._lent, what="second copies of its pages")
        self.fallback = "" if lack is None else str(lack)
        self._begin(needed)

    def _known(self, sequence: Sequence) -> Sequence | None:
        return sequence if sequence.pages and self._mirrors.knows(sequence.seq) else None

    def _life(self, sequence: Sequence) -> PageId:
        return sequence.pages[0]

    def _held(self, sequence: Sequence, index: int) -> HeldPage | None:
        table, page = self._residency.table, sequence.pages[index]
        # A page that is being pushed stays here, and goes with the switching step.
        return None if table.is_pinned(page) else HeldPage(page, table.copies(page))

    def _make_row(self, sequence: Sequence, index: int, ranks: Seq[RankId]) -> RowToCome | None:
        table = self._residency.table
        row = table.plan_ahead(sequence.pages[index], ranks, lent=self._lent)
        if row is None:
            return None
        self._residency.note_borrowed_slots((rank, row.slots[rank]) for rank in row.made)
        if self._cursors[sequence.seq].rows == index:
            slots = tuple(row.slots.get(RankId(r), NO_SLOT) for r in range(table.num_ranks))
            self._new_rows.setdefault(sequence.seq, _NewRows(index, [])).slots.append(slots)
        return row

    @property
    def _to_clear(self) -> list[SlotId]:
        lenders = self._residency.table.arena.lenders
        return [slot for matrix in self._gathered for slot in lenders[matrix]]
