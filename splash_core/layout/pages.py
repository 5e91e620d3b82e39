"""The slots of one rank: which are free, and how often each has changed hands.

Ordinary slots are handed out first (lowest id first), borrowed ones last, because a switch into a
replicated layout must evacuate the borrowed ones. Invariant: every slot is either free or has exactly
one user, and a slot's generation grows whenever its user is taken away.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from splash_core.errors import InvariantBroken
from splash_core.ids import RankId, SlotId


@dataclass(frozen=True, slots=True)
class PageCopy:
    """One copy of a page. It is stale once the slot's generation has moved on."""

    rank: RankId
    slot: SlotId
    generation: int


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

    def __init__(self, *, ordinary: Iterable[SlotId], borrowed: Iterable[SlotId] = ()) -> None:
        self._ordinary = frozenset(ordinary)
        self._borrowed = frozenset(borrowed)
        if self._ordinary & self._borrowed:
            raise InvariantBroken(
                f"slots both ordinary and borrowed: {sorted(self._ordinary & self._borrowed)}"
            )
        self._free_ordinary = _FreeList(self._ordinary)
        self._free_borrowed = _FreeList(self._borrowed)
        self._used: set[SlotId] = set()
        self._generations: dict[SlotId, int] = {}

    @property
    def free_ordinary(self) -> int:
        """Free slots that every layout may use."""
        return len(self._free_ordinary)

    @property
    def free_borrowed(self) -> int:
        """Free slots that only layouts with sharded projections may use."""
        return len(self._free_borrowed)

    @property
    def num_used(self) -> int:
        """Slots in use."""
        return len(self._used)

    @property
    def used_borrowed(self) -> int:
        """Borrowed slots in use."""
        return len(self._borrowed) - len(self._free_borrowed)

    def free_slots(self, *, allow_borrowed: bool) -> int:
        """How many `allocate` calls would succeed."""
        return self.free_ordinary + (self.free_borrowed if allow_borrowed else 0)

    def free_ids(self, *, borrowed: bool) -> tuple[SlotId, ...]:
        """The free slots of one kind in ascending order."""
        return (self._free_borrowed if borrowed else self._free_ordinary).ids()

    def is_borrowed(self, slot: SlotId) -> bool:
        """True for a slot that lies inside replicated weights."""
        return slot in self._borrowed

    def is_used(self, slot: SlotId) -> bool:
        """True for a slot with a user."""
        return slot in self._used

    def is_current(self, slot: SlotId, generation: int) -> bool:
        """True while the slot still has the user that it had at this generation."""
        return slot in self._used and self.generation(slot) == generation

    def generation(self, slot: SlotId) -> int:
        """How often the slot's user was taken away; a reference with an older value is stale."""
        return self._generations.get(slot, 0)

    def allocate(self, *, allow_borrowed: bool) -> SlotId | None:
        """The lowest free ordinary slot, else (if allowed) the lowest free borrowed one, else None."""
        slot = self._free_ordinary.pop()
        if slot is None and allow_borrowed:
            slot = self._free_borrowed.pop()
        if slot is not None:
            self._used.add(slot)
        return slot

    def take(self, slot: SlotId) -> None:
        """Allocate a named slot (a manifest chose it).

        Raises:
            InvariantBroken: the slot is not free.
        """
        free = self._free_borrowed if slot in self._borrowed else self._free_ordinary
        if slot not in free:
            raise InvariantBroken(
                f"slot {slot} is not free: it is {'in use' if slot in self._used else 'unknown'}"
            )
        free.remove(slot)
        self._used.add(slot)

    def free(self, slot: SlotId) -> None:
        """Give a slot back and make references to it stale.

        Raises:
            InvariantBroken: the slot is not in use (a double free, or not a slot of this rank).
        """
        if slot not in self._used:
            raise InvariantBroken(f"slot {slot} is freed but not in use")
        self._used.remove(slot)
        self._generations[slot] = self.generation(slot) + 1
        (self._free_borrowed if slot in self._borrowed else self._free_ordinary).add(slot)

    def check_integrity(self) -> None:
        """Prove that slots are conserved: each is free or used, never both.

        Raises:
            InvariantBroken: names the slots at fault.
        """
        free = set(self._free_ordinary.ids()) | set(self._free_borrowed.ids())
        if free & self._used:
            raise InvariantBroken(f"slots both free and used: {sorted(free & self._used)}")
        astray = (self._ordinary | self._borrowed) ^ (free | self._used)
        if astray:
            raise InvariantBroken(f"slots lost or invented: {sorted(astray)}")
        if not self._ordinary.issuperset(self._free_ordinary.ids()):
            raise InvariantBroken("a borrowed slot is in the ordinary free list")
