"""Plan a switch (or a relocation) as the difference of two ownerships, or say why it cannot be done.

Pure and deterministic: the same table and wishes give the same manifest on every run. A copy that is
already where it is wanted stays in its slot; missing copies go to free ordinary slots first, then to
ordinary slots that the switch vacates, and only then to borrowed ones. Nothing is changed here:
`PageTable.apply` records a manifest once it has been executed, so a refused switch changes nothing.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from splash_core.ids import Epoch, PageId, RankId, SlotId
from splash_core.layout.layout import RULES, Layout, Matrices
from splash_core.layout.ownership import PageTable
from splash_core.layout.pages import SlotKind, slot_kinds
from splash_core.switch.chunks import ChunkScheduler, Need, SlotKey
from splash_core.switch.difference import Difference, find_difference, weight_primitives
from splash_core.switch.evacuation import evacuate, pack
from splash_core.switch.manifest import Chunk, Primitive, Refusal, SlotRef, SwitchManifest


def plan_switch(
    *,
    table: PageTable,
    wanted: Mapping[PageId, Sequence[RankId]],
    layout_from: Layout,
    layout_to: Layout,
    epoch: Epoch,
    staging_bytes: int,
    avoid_borrowed: Matrices = frozenset(),
) -> SwitchManifest | Refusal:
    """Plan how a group gets from what it holds to what is wanted.

    Args:
        table: the group's pages; only read.
        wanted: ranks that shall hold each page. Pages left out stay on their ranks (in other slots, if
            theirs are borrowed and the destination replicates their matrix). No copy of a pinned page moves.
        layout_from: the present layout.
        layout_to: the destination; equal to `layout_from` for a relocation.
        epoch: the layout epoch after the switch.
        staging_bytes: what a rank may receive, and send, in one chunk.
        avoid_borrowed: move nothing into the borrowed slots of these matrices, though pages may stay
            there: a switch that needs them empty is waiting.
    """
    lent = RULES[layout_to].lends
    weights = weight_primitives(layout_from, layout_to, num_ranks=table.num_ranks)
    gathered = tuple(matrix for matrix, primitive in weights.items() if primitive is Primitive.ALL_GATHER)
    slice_bytes = table.arena.layer_slice_bytes
    difference = find_difference(table, wanted, lent=lent)
    plan = _Plan(table, difference, lent=lent, avoid=avoid_borrowed)
    problem = plan.problem() or plan.schedule(slice_bytes=slice_bytes, staging_bytes=staging_bytes)
    if problem is not None:
        return problem.refusal(layout_from, layout_to)
    return SwitchManifest(
        layout_from=layout_from,
        layout_to=layout_to,
        epoch=epoch,
        weights=_summary(weights.values()),
        gathered=gathered,
        kv=difference.kv,
        boundary_chunks=plan.boundary,
        layer_chunks=plan.layered,
        released=plan.released(),
        weight_bytes_per_layer=table.arena.gather_bytes_per_layer(gathered),
        kv_bytes_per_layer=plan.received_bytes(slice_bytes),
    )


def _summary(weights: Collection[Primitive]) -> Primitive:
    """All matrices in one word: what costs most."""
    by_cost = (Primitive.ALL_GATHER, Primitive.DISCARD)
    return next((primitive for primitive in by_cost if primitive in weights), Primitive.KEEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    reason: str
    rank: RankId | None = None
    needed_slots: int | None = None
    free_slots: int | None = None

    def refusal(self, layout_from: Layout, layout_to: Layout) -> Refusal:
        """The answer to whoever asked for the switch."""
        return Refusal(
            layout_from=layout_from,
            layout_to=layout_to,
            reason=f"{layout_from} → {layout_to}: {self.reason}",
            rank=self.rank,
            needed_slots=self.needed_slots,
            free_slots=self.free_slots,
        )


class _Plan:
    """One attempt: needs, the slots that may take them, and the chunks once `schedule` succeeded."""

    def __init__(self, table: PageTable, difference: Difference, *, lent: Matrices, avoid: Matrices) -> None:
        self._table = table
        self._difference = difference
        self._lent = lent
        self._ranks = tuple(RankId(rank) for rank in range(table.num_ranks))
        self._inflow = Counter(need.dst for need in difference.needs)
        self._readers = Counter(need.source for need in difference.needs)
        # Kinds of slots that pages may move to, best first.
        self._kinds = slot_kinds(lent - avoid)
        self.boundary: tuple[Chunk, ...] = ()
        self.layered: tuple[Chunk, ...] = ()

    def problem(self) -> _Problem | None:
        """Why no order of moves can work: pins, or too few slots in total."""
        if self._difference.stuck is not None:
            rank, slot = self._difference.stuck
            return _Problem(
                reason=f"rank {rank} slot {slot} lies under weights to be gathered and holds a page that is "
                "still being transferred; try again when the transfer has ended",
                rank=rank,
                needed_slots=1,
                free_slots=0,
            )
        worst = max(self._ranks, key=lambda rank: (self._inflow[rank] - self._room(rank), -rank))
        needed, room = self._inflow[worst], self._room(worst)
        if needed <= room:
            return None
        kind = "slots" if len(self._kinds) > 1 else "ordinary slots"
        return _Problem(
            reason=f"rank {worst} must take {needed} pages but has {room} {kind} for them; "
            f"finish or move {needed - room} pages first",
            rank=worst,
            needed_slots=needed,
            free_slots=room,
        )

    def schedule(self, *, slice_bytes: int, staging_bytes: int) -> _Problem | None:
        """Order the moves; borrowed slots that weights will fill are cleared at the step boundary."""
        page_bytes = self._table.arena.slot_bytes
        slices, pages = staging_bytes // slice_bytes, staging_bytes // page_bytes
        if not self._difference.needs:
            return None
        evacuees = [need for need in self._difference.needs if self._is_forbidden(need.source)]
        if slices == 0 or (evacuees and pages == 0):
            unit = page_bytes if evacuees else slice_bytes
            return _Problem(reason=f"staging of {staging_bytes} bytes cannot hold one move of {unit} bytes")
        targets = self._targets()
        if not evacuees:
            self.layered = self._run(self._difference.needs, *targets, capacity=slices)
        elif not self._schedule_evacuation(evacuees, *targets, slices=slices, pages=pages):
            # Free slots alone do not take the evacuees: permute whole pages in place.
            self.boundary = self._run(self._difference.needs, *targets, capacity=pages)
        return None

    def released(self) -> tuple[SlotRef, ...]:
        """Slots that hold a page before or during the switch, and none after it."""
        holds = dict(self._difference.leaving)
        wanted = {(need.page, need.dst) for need in self._difference.needs}
        final: dict[tuple[PageId, RankId], SlotId] = {}
        for move in (move for chunk in (*self.boundary, *self.layered) for move in chunk):
            holds[move.dst, move.dst_slot] = move.page
            if (move.page, move.dst) in wanted:
                final[move.page, move.dst] = move.dst_slot
        return tuple(
            SlotRef(rank, slot)
            for (rank, slot), page in sorted(holds.items())
            if final.get((page, rank)) != slot
        )

    def received_bytes(self, slice_bytes: int) -> tuple[int, ...]:
        """Per rank, per layer, from other ranks."""
        moves = (move for chunk in (*self.boundary, *self.layered) for move in chunk)
        received = Counter(move.dst for move in moves if move.src != move.dst)
        return tuple(received[rank] * slice_bytes for rank in self._ranks)

    def _is_forbidden(self, key: SlotKey) -> bool:
        return not self._table.pools[key[0]].may_hold(key[1], self._lent)

    def _of_kind(self, keys: frozenset[SlotKey], rank: RankId, kind: SlotKind) -> list[SlotId]:
        pool = self._table.pools[rank]
        return sorted(slot for owner, slot in keys if owner == rank and pool.kind(slot) is kind)

    def _leaving(self, rank: RankId, kind: SlotKind) -> list[SlotId]:
        """Slots that are vacated once read, those with few readers first."""
        slots = self._of_kind(self._difference.vacated, rank, kind)
        return sorted(slots, key=lambda slot: (self._readers[rank, slot], slot))

    def _room(self, rank: RankId) -> int:
        """Slots of a rank that can take pages, now or once their copies have left."""
        return sum(
            len(self._table.pools[rank].free_ids(kind))
            + len(self._of_kind(self._difference.unread, rank, kind))
            + len(self._leaving(rank, kind))
            for kind in self._kinds
        )

    def _targets(self) -> tuple[dict[RankId, list[SlotId]], frozenset[SlotKey]]:
        """Slots that are free at once, best first, and slots to reuse: no more kinds than needed."""
        free: dict[RankId, list[SlotId]] = {}
        reusable: set[SlotKey] = set()
        for rank in self._ranks:
            free[rank] = []
            left = self._inflow[rank]
            for kind in self._kinds:
                borrowed = kind is not None
                unread = self._of_kind(self._difference.unread, rank, kind)
                now = [*self._table.pools[rank].free_ids(kind), *unread]
                # All that is left of the best kind; of borrowed slots only what ordinary ones lack.
                free[rank].extend(now[:left] if borrowed else now)
                left -= len(now)
                if left > 0:
                    later = self._leaving(rank, kind)
                    reusable.update((rank, slot) for slot in (later[:left] if borrowed else later))
                    left -= len(later)
                if left <= 0:
                    break
        return free, frozenset(reusable)

    def _run(
        self,
        needs: Sequence[Need],
        free: Mapping[RankId, Sequence[SlotId]],
        reusable: frozenset[SlotKey],
        *,
        capacity: int,
    ) -> tuple[Chunk, ...]:
        scheduler = ChunkScheduler(
            needs, free=free, reusable=reusable, capacity=capacity, num_ranks=self._table.num_ranks
        )
        return scheduler.run()

    def _schedule_evacuation(
        self,
        evacuees: Sequence[Need],
        free: Mapping[RankId, Sequence[SlotId]],
        reusable: frozenset[SlotKey],
        *,
        slices: int,
        pages: int,
    ) -> bool:
        """Clear forbidden slots at the boundary, move the rest by layers; False if that does not fit."""
        evacuation = evacuate(evacuees, free)
        if evacuation is None:
            return False
        delivered = {(move.page, move.dst) for move in evacuation.moves}
        moved_to = evacuation.moved_to
        rest = [
            Need(need.page, *moved_to.get(need.source, need.source), need.dst)
            for need in self._difference.needs
            if (need.page, need.dst) not in delivered
        ]
        self.boundary = pack(evacuation.moves, capacity=pages)
        self.layered = self._run(rest, evacuation.free, reusable | evacuation.temporary, capacity=slices)
        return True
