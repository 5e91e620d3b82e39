"""The slots of one rank: which are free, and how often each has changed hands.

Ordinary slots are handed out first (lowest id first), borrowed ones last, because a switch into a layout
that replicates their matrix must evacuate them. A slot that a manifest vacates is free for whatever comes
after it on the ranks, and may be made to rest for those who would not wait for it. Invariant: every slot is
free, resting or has exactly one user, and its generation grows whenever its user is taken away.
"""

import heapq
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from splash_core.errors import InvariantBroken
from splash_core.ids import SlotId
from splash_core.layout.layout import LENDING_ORDER, Matrices, Matrix

SlotKind = Matrix | None
"""The matrix that fills a borrowed slot when it is replicated; None for an ordinary slot."""


class _FreeList:
    """Free slots, lowest id first, with removal of a named slot (stale heap entries are skipped)."""

    def __init__(self, slots: Iterable[SlotId]) -> None:
        self._free = set(slots)
        self._heap = sorted(self._free)

    def __len__(self) -> int:
        return len(self._free)

    def __contains__(self, slot: SlotId) -> bool:
        return slot in self._free

    def pop(self) -> SlotId | None:
        """Remove and return the lowest free slot."""
        while self._heap:
            slot = heapq.heappop(self._heap)
            if slot in self._free:
                self._free.remove(slot)
                return slot
        return None

    def remove(self, slot: SlotId) -> None:
        """Remove a named free slot."""
        self._free.remove(slot)
        if len(self._heap) > 2 * len(self._free) + 16:
            self._heap = sorted(self._free)

    def add(self, slot: SlotId) -> None:
        """Put a slot back."""
        self._free.add(slot)
        heapq.heappush(self._heap, slot)

    def ids(self) -> tuple[SlotId, ...]:
        """All free slots in ascending order."""
        return tuple(sorted(self._free))


class SlotPool:
    """Allocator of one rank's slots."""

    def __init__(
        self,
        *,
        ordinary: Iterable[SlotId],
        borrowed: Mapping[Matrix, Iterable[SlotId]] = MappingProxyType({}),
    ) -> None:
        self._ordinary = frozenset(ordinary)
        self._lenders = {slot: matrix for matrix, slots in borrowed.items() for slot in slots}
        if both := self._ordinary & self._lenders.keys():
            raise InvariantBroken(f"slots both ordinary and borrowed: {sorted(both)}")
        self._free: dict[SlotKind, _FreeList] = {
            None: _FreeList(self._ordinary),
            **{matrix: _FreeList(borrowed.get(matrix, ())) for matrix in LENDING_ORDER},
        }
        self._num_borrowed = {matrix: len(self._free[matrix]) for matrix in LENDING_ORDER}
        self._used: set[SlotId] = set()
        self._vacated: set[SlotId] = set()
        """Of the free slots, those that manifests have vacated since the last rest."""
        self._resting: set[SlotId] = set()
        self._generations: dict[SlotId, int] = {}

    @property
    def free_ordinary(self) -> int:
        """Free slots that every layout may use."""
        return len(self._free[None])

    @property
    def num_used(self) -> int:
        """Slots in use."""
        return len(self._used)

    @property
    def used_borrowed(self) -> int:
        """Borrowed slots in use."""
        return sum(map(self._used_under, Matrix))

    def free_slots(self, *, lent: Matrices) -> int:
        """How many `allocate` calls would succeed."""
        return self.free_ordinary + sum(len(self._free[matrix]) for matrix in lent)

    def free_ids(self, kind: SlotKind) -> tuple[SlotId, ...]:
        """The free slots of one kind in ascending order."""
        return self._free[kind].ids()

    def num_free(self, kind: SlotKind) -> int:
        """How many slots of one kind are free."""
        return len(self._free[kind])

    def of_kind(self, slots: AbstractSet[SlotId], kind: SlotKind) -> list[SlotId]:
        """Those of the slots that are of one kind, ascending."""
        if kind is None:
            return sorted(slots - self._lenders.keys())
        return sorted(slot for slot in slots & self._lenders.keys() if self._lenders[slot] is kind)

    def kind(self, slot: SlotId) -> SlotKind:
        """Ordinary, or inside which replicated matrix."""
        return self._lenders.get(slot)

    def is_borrowed(self, slot: SlotId) -> bool:
        """True for a slot that lies inside the weights of some layout."""
        return slot in self._lenders

    def may_hold(self, slot: SlotId, lent: Matrices) -> bool:
        """Whether a page may lie in the slot where the slots of the matrices `lent` may be used."""
        kind = self._lenders.get(slot)
        return kind is None or kind in lent

    def all_may_stay(self, lent: Matrices) -> bool:
        """Whether every slot in use is one that `may_hold` a page."""
        return not any(self._used_under(matrix) for matrix in Matrix if matrix not in lent)

    def is_used(self, slot: SlotId) -> bool:
        """True for a slot with a user."""
        return slot in self._used

    def generation(self, slot: SlotId) -> int:
        """How often the slot's user was taken away; a reference with an older value is stale."""
        return self._generations.get(slot, 0)

    def allocate(self, *, lent: Matrices) -> SlotId | None:
        """The lowest free ordinary slot, else the lowest free one that is lent, else None."""
        for kind in slot_kinds(lent):
            slot = self._free[kind].pop()
            if slot is not None:
                self._use(slot)
                return slot
        return None

    def take(self, slot: SlotId) -> None:
        """Allocate a named slot (a manifest chose it).

        Raises:
            InvariantBroken: the slot is not free.
        """
        free = self._free[self.kind(slot)]
        if slot not in free:
            raise InvariantBroken(
                f"slot {slot} is not free: it is {'in use' if slot in self._used else 'unknown'}"
            )
        free.remove(slot)
        self._use(slot)

    def free(self, slot: SlotId) -> None:
        """Give a slot back and make references to it stale.

        Raises:
            InvariantBroken: the slot is not in use (a double free, or not a slot of this rank).
        """
        if slot not in self._used:
            raise InvariantBroken(f"slot {slot} is freed but not in use")
        self._used.remove(slot)
        self._generations[slot] = self.generation(slot) + 1
        self._free[self.kind(slot)].add(slot)

    def vacate(self, slot: SlotId) -> None:
        """As `free`, of a slot that a manifest reads before it is anybody else's."""
        self.free(slot)
        self._vacated.add(slot)

    def rest(self) -> None:
        """Vacated ordinary slots that are still free are nobody's until `end_rest`."""
        resting = [slot for slot in self._vacated if slot in self._free[None]]
        for slot in resting:
            self._free[None].remove(slot)
        self._resting.update(resting)
        self._vacated.clear()

    def end_rest(self) -> None:
        """What reads vacated slots is over: they are as free as others."""
        for slot in self._resting:
            self._free[None].add(slot)
        self._resting.clear()
        self._vacated.clear()

    def check_integrity(self) -> None:
        """Prove that slots are conserved: each is free, resting or used, never two of them.

        Raises:
            InvariantBroken: names the slots at fault.
        """
        free = {slot for slots in self._free.values() for slot in slots.ids()}
        if free & self._used:
            raise InvariantBroken(f"slots both free and used: {sorted(free & self._used)}")
        if self._resting & (free | self._used):
            raise InvariantBroken("a slot that rests is free or in use")
        astray = (self._ordinary | self._lenders.keys()) ^ (free | self._used | self._resting)
        if astray:
            raise InvariantBroken(f"slots lost or invented: {sorted(astray)}")
        for kind, slots in self._free.items():
            if any(self.kind(slot) is not kind for slot in slots.ids()):
                raise InvariantBroken(f"a slot of another kind is in the free list of {kind or 'ordinary'}")

    def _use(self, slot: SlotId) -> None:
        self._used.add(slot)
        self._vacated.discard(slot)

    def _used_under(self, matrix: Matrix) -> int:
        """Slots in use that the matrix fills when it is replicated."""
        return self._num_borrowed[matrix] - len(self._free[matrix])


def slot_kinds(lent: Matrices) -> tuple[SlotKind, ...]:
    """The kinds of slots that pages may take where those of the matrices `lent` may be used, best first."""
    return (None, *(matrix for matrix in LENDING_ORDER if matrix in lent))
