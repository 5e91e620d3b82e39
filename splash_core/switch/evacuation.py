"""Clear the slots that weights are about to fill, at the step boundary.

A copy that its rank keeps moves to a free slot of that rank. One that leaves goes straight to the ranks
that want it where they have room, else to a free slot of its own rank, from which a layer move takes it
later. Invariant: evacuation reads forbidden slots only and writes free ones only, so its moves may run
in any order.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from splash_core.ids import Epoch, RankId, SlotId
from splash_core.layout.columns import Column, column
from splash_core.layout.layout import Layout
from splash_core.layout.slots import ArenaMap
from splash_core.switch.chunks import Need, SlotKey
from splash_core.switch.manifest import PageMove, Primitive, SwitchManifest
from splash_core.switch.packing import pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Evacuation:
    """Boundary moves, and what they leave for the layer moves."""

    moves: tuple[PageMove, ...]
    moved_to: Mapping[SlotKey, SlotKey]
    """For each cleared slot: where its page can be read from now on."""
    temporary: frozenset[SlotKey]
    """Slots that hold a page only until a layer move has read it."""
    free: Mapping[RankId, Sequence[SlotId]]
    """Targets that are still free."""


def evacuate(needs: Sequence[Need], free: Mapping[RankId, Sequence[SlotId]]) -> Evacuation | None:
    """Plan moves out of the slots that `needs` read; None when free slots do not suffice."""
    room = {rank: deque(slots) for rank, slots in free.items()}
    moves: list[PageMove] = []
    moved_to: dict[SlotKey, SlotKey] = {}
    temporary: set[SlotKey] = set()

    def move(need: Need, dst: RankId) -> bool:
        if not room[dst]:
            return False
        slot = room[dst].popleft()
        moves.append(PageMove(need.page, need.src, need.src_slot, dst, slot))
        moved_to.setdefault(need.source, (dst, slot))
        return True

    for need in needs:
        if need.src == need.dst and not move(need, need.dst):
            return None
    kept = frozenset(moved_to)
    leaving = [need for need in needs if need.source not in kept]
    for need in leaving:
        move(need, need.dst)
    for need in leaving:
        if need.source not in moved_to:
            if not move(need, need.src):
                return None
            temporary.add(moved_to[need.source])
    return Evacuation(
        moves=tuple(moves),
        moved_to=moved_to,
        temporary=frozenset(temporary),
        free={r: tuple(s) for r, s in room.items()},
    )


def slots_by_rank(keys: Iterable[SlotKey], *, num_ranks: int) -> tuple[Column, ...]:
    """`[T]`: the slots of each rank, ascending."""
    slots: list[list[int]] = [[] for _ in range(num_ranks)]
    for rank, slot in keys:
        slots[rank].append(slot)
    return tuple(column(sorted(of_rank)) for of_rank in slots)


def local_moves(
    moves: Sequence[PageMove], *, arena: ArenaMap, layout: Layout, epoch: Epoch, staging_bytes: int
) -> SwitchManifest:
    """A manifest of independent moves that stay on their ranks and change no layout.

    Args:
        moves: from used slots to free ones.
        arena: the slot map.
        layout: the present layout.
        epoch: the present epoch.
        staging_bytes: most bytes that one chunk stages on a rank.
    """
    return SwitchManifest(
        layout_from=layout,
        layout_to=layout,
        epoch=epoch,
        weights=Primitive.KEEP,
        kv=Primitive.KEEP,
        boundary_chunks=pack(moves, capacity=max(staging_bytes // arena.slot_bytes, 1)),
        released=slots_by_rank(((move.src, move.src_slot) for move in moves), num_ranks=arena.num_ranks),
        kv_bytes_per_layer=(0,) * arena.num_ranks,
    )
