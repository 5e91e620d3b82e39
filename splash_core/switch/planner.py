"""Plan a switch (or a relocation) as the difference of two ownerships, or say why it cannot be done.

Pure and deterministic: the same table and wishes give the same manifest on every run. A copy that is
already where it is wanted stays in its slot; missing copies go to free ordinary slots first, then to
ordinary slots that the switch vacates, and only then to borrowed ones. Nothing is changed here:
`PageTable.apply` records a manifest once it has been executed, so a refused switch changes nothing.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from splash_core.ids import Epoch, PageId, RankId, SlotId
from splash_core.layout.columns import Column, column
from splash_core.layout.layout import RULES, Layout, Matrices
from splash_core.layout.ownership import NO_SLOT, PageTable
from splash_core.layout.pages import SlotKind, slot_kinds
from splash_core.switch.chunks import ChunkScheduler, Need, SlotKey
from splash_core.switch.difference import OwnershipDifference, find_difference, weight_primitives
from splash_core.switch.evacuation import evacuate
from splash_core.switch.manifest import Chunk, Flow, Primitive, Refusal, SwitchManifest, flows_of
from splash_core.switch.packing import pack, spread


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

    def __init__(
        self, table: PageTable, difference: OwnershipDifference, *, lent: Matrices, avoid: Matrices
    ) -> None:
        self._table = table
        self._difference = difference
        self._lent = lent
        self._ranks = tuple(RankId(rank) for rank in range(table.num_ranks))
        self._inflow = Counter[RankId]()
        for (_, dst), route in difference.routes.items():
            self._inflow[dst] += len(route.pages)
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
        if not self._difference.routes:
            return None
        evacuees = self._evacuees()
        if slices == 0 or (evacuees and pages == 0):
            unit = page_bytes if evacuees else slice_bytes
            return _Problem(reason=f"staging of {staging_bytes} bytes cannot hold one move of {unit} bytes")
        free, reusable = self._targets()
        if not evacuees and not reusable:
            # Nothing that is read is written, so the order is free.
            self.layered = spread(self._flows(free), capacity=slices)
        elif not evacuees:
            self.layered = self._run(self._difference.needs, free, reusable, capacity=slices)
        elif not self._schedule_evacuation(evacuees, free, reusable, slices=slices, pages=pages):
            # Free slots alone do not take the evacuees: permute whole pages in place.
            self.boundary = self._run(self._difference.needs, free, reusable, capacity=pages)
        return None

    def released(self) -> tuple[Column, ...]:
        """Slots that hold a page before or during the switch, and none after it."""
        held: list[set[int]] = [set(leaving) for leaving in self._difference.leaving]
        final: list[set[int]] = [set() for _ in self._ranks]
        for flow in flows_of(self.layered):
            final[flow.dst].update(flow.dst_slots)
        if self.boundary:
            final = self._final_slots()
            for flow in self._flows_planned():
                held[flow.dst].update(flow.dst_slots)
        return tuple(column(sorted(held[rank] - final[rank])) for rank in self._ranks)

    def _final_slots(self) -> list[set[int]]:
        """On each rank: where its missing copies are in the end, though they may have moved twice."""
        slots: list[dict[int, int]] = [{} for _ in self._ranks]
        for (_, dst), route in self._difference.routes.items():
            slots[dst].update(dict.fromkeys(route.pages, NO_SLOT))
        for flow in self._flows_planned():
            arrived = zip(flow.pages, flow.dst_slots, strict=True)
            slots[flow.dst].update((page, slot) for page, slot in arrived if page in slots[flow.dst])
        return [set(of_rank.values()) for of_rank in slots]

    def received_bytes(self, slice_bytes: int) -> tuple[int, ...]:
        """Per rank, per layer, from other ranks."""
        received = Counter[RankId]()
        for flow in self._flows_planned():
            received[flow.dst] += len(flow) * flow.crosses
        return tuple(received[rank] * slice_bytes for rank in self._ranks)

    def _flows_planned(self) -> Iterator[Flow]:
        return flows_of((*self.boundary, *self.layered))

    def _evacuees(self) -> list[Need]:
        """Needs that read slots that weights will fill."""
        if self._difference.all_may_stay:
            return []
        return [need for need in self._difference.needs if self._is_forbidden(need.source)]

    def _flows(self, free: Mapping[RankId, Sequence[SlotId]]) -> list[Flow]:
        """All needs, in order, into slots that are free from the start."""
        left = {rank: iter(slots) for rank, slots in free.items()}
        return [
            Flow(src, dst, route.pages, route.slots, column(islice(left[dst], len(route.pages))))
            for (src, dst), route in self._difference.routes.items()
        ]

    def _is_forbidden(self, key: SlotKey) -> bool:
        return not self._table.pools[key[0]].may_hold(key[1], self._lent)

    def _leaving(self, rank: RankId, kind: SlotKind) -> list[SlotId]:
        """Slots that are vacated once read, those with few readers first."""
        slots = self._table.pools[rank].of_kind(self._difference.vacated[rank], kind)
        readers = Counter[int]()
        for (src, _), route in self._difference.routes.items():
            if src == rank:
                readers.update(route.slots)
        return sorted(slots, key=lambda slot: (readers[slot], slot))

    def _room(self, rank: RankId) -> int:
        """Slots of a rank that can take pages, now or once their copies have left."""
        pool, found = self._table.pools[rank], self._difference
        return sum(
            pool.num_free(kind)
            + len(pool.of_kind(found.unread[rank], kind))
            + len(pool.of_kind(found.vacated[rank], kind))
            for kind in self._kinds
        )

    def _targets(self) -> tuple[dict[RankId, list[SlotId]], frozenset[SlotKey]]:
        """Slots that are free at once, best first, and slots to reuse: no more kinds than needed."""
        free: dict[RankId, list[SlotId]] = {}
        reusable: set[SlotKey] = set()
        for rank in self._ranks:
            free[rank] = []
            left, pool = self._inflow[rank], self._table.pools[rank]
            for kind in self._kinds:
                borrowed = kind is not None
                now = [*pool.free_ids(kind), *pool.of_kind(self._difference.unread[rank], kind)]
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
