"""The slots of one rank: which are free, and how often each has changed hands.

Ordinary slots are handed out first (lowest id first), borrowed ones last, because a switch into a layout
that replicates their matrix must evacuate them. A slot that a manifest vacates is free for whatever comes
after it on the ranks, and may be made to rest for those who would not wait for it. Invariant: every slot is
free, resting or has exactly one user, and its generation grows whenever its user is taken away.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from splash_core.errors import InvariantBroken
from splash_core.ids import SlotId
from splash_core.layout.layout import LENDING_ORDER, Matrices, Matrix

SlotKind = Matrix | None
"""The matrix that fills a borrowed slot when it is replicated; None for an ordinary slot."""

_FEW = 8
"""Of a heap's entries, a share of one in so many is put in one by one."""


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

    def remove(self, slots: AbstractSet[SlotId]) -> None:
        """Remove named free slots."""
        self._free -= slots
        if len(self._heap) > 2 * len(self._free) + 16:
            self._heap = sorted(self._free)

    def add(self, slots: AbstractSet[SlotId]) -> None:
        """Put slots back."""
        self._free |= slots
        if len(slots) * _FEW < len(self._heap):
            for slot in slots:
                heapq.heappush(self._heap, slot)
        else:
            self._heap += slots
            heapq.heapify(self._heap)

    def lacks(self, slots: AbstractSet[SlotId]) -> AbstractSet[SlotId]:
        """Those of the slots that are not free."""
        return slots - self._free

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

    def take(self, slots: Iterable[SlotId]) -> None:
        """Allocate named slots (a manifest chose them).

        Raises:
            InvariantBroken: one of them is not free.
        """
        for kind, of_kind in self._by_kind(frozenset(slots)):
            for slot in sorted(self._free[kind].lacks(of_kind)):
                raise InvariantBroken(
                    f"slot {slot} is not free: it is {'in use' if slot in self._used else 'unknown'}"
                )
            self._free[kind].remove(of_kind)
            self._used |= of_kind
            self._vacated -= of_kind

    def free(self, slots: Iterable[SlotId]) -> None:
        """Give slots back and make references to them stale.

        Raises:
            InvariantBroken: one is not in use (a double free, or not a slot of this rank), or named twice.
        """
        given = _distinct(slots)
        for slot in sorted(given - self._used):
            raise InvariantBroken(f"slot {slot} is freed but not in use")
        self._used -= given
        generations = self._generations
        for slot in given:
            generations[slot] = generations.get(slot, 0) + 1
        for kind, of_kind in self._by_kind(given):
            self._free[kind].add(of_kind)

    def vacate(self, slots: Iterable[SlotId]) -> None:
        """As `free`, of slots that a manifest reads before they are anybody else's."""
        given = _distinct(slots)
        self.free(given)
        self._vacated |= given

    def rest(self) -> None:
        """Vacated ordinary slots that are still free are nobody's until `end_rest`."""
        resting = self._vacated - self._free[None].lacks(self._vacated)
        self._free[None].remove(resting)
        self._resting |= resting
        self._vacated.clear()

    def end_rest(self) -> None:
        """What reads vacated slots is over: they are as free as others."""
        self._free[None].add(self._resting)
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

    def _by_kind(self, slots: frozenset[SlotId]) -> Iterator[tuple[SlotKind, frozenset[SlotId]]]:
        """The slots of each kind, but for kinds of which there are none."""
        borrowed = slots & self._lenders.keys()
        if len(borrowed) < len(slots):
            yield None, slots - borrowed
        for matrix in LENDING_ORDER if borrowed else ():
            of_kind = frozenset(slot for slot in borrowed if self._lenders[slot] is matrix)
            if of_kind:
                yield matrix, of_kind

    def _use(self, slot: SlotId) -> None:
        self._used.add(slot)
        self._vacated.discard(slot)

    def _used_under(self, matrix: Matrix) -> int:
        """Slots in use that the matrix fills when it is replicated."""
        return self._num_borrowed[matrix] - len(self._free[matrix])


def _distinct(slots: Iterable[SlotId]) -> frozenset[SlotId]:
    """The slots, none of which may be named twice."""
    named = tuple(slots)
    given = frozenset(named)
    if len(given) != len(named):
        twice = sorted(slot for slot, times in Counter(named).items() if times > 1)
        raise InvariantBroken(f"slots {twice} are freed twice at once")
    return given


def slot_kinds(lent: Matrices) -> tuple[SlotKind, ...]:
    """The kinds of slots that pages may take where those of the matrices `lent` may be used, best first."""
    return (None, *(matrix for matrix in LENDING_ORDER if matrix in lent))
