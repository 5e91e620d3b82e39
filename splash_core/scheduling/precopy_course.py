"""The course of one switch's copying ahead, over ordinary steps: whose turn is next, and when all is done.

Each full page of a running sequence is looked at once in each of its lives, oldest sequence first, and gets a
row to come: to ranks that will hold it and lack it, it is copied. Where one has no room, it is left to the
switching step. What a page and its room are, the two kinds say: `precopy` has slots, the simulator counts.
Invariant: the switching step comes in bounded time, whatever arrives meanwhile.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import lcm
from typing import Generic, NamedTuple, TypeVar

from splash_core.ids import PageId, RankId, SeqId
from splash_core.layout.ahead import RowToCome
from splash_core.layout.layout import RULES, KvPlacement, Layout
from splash_core.layout.ownership import PageCopy
from splash_core.scheduling.holding import Holding
from splash_core.scheduling.owners import NO_OWNERS, OwnerAssignment, Owners
from splash_core.scheduling.precopy_pace import PrecopyPace
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.switch.precopy import PageCopies

SPARE_BOUNDARIES = 8
PAGES_A_STEP = 256
"""Most pages that one step gives a row to come: making and telling them must not hold the step up."""

S = TypeVar("S", bound=Sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecopyUnits:
    """What is copied ahead, in bytes that a rank receives."""

    page: int
    """All layers."""
    layer_weights: int
    """Missing weights of one layer; 0 where the switch gathers none."""
    num_layers: int
    """Of the model."""


class HeldPage(NamedTuple):
    """A page, and where it is now."""

    page: PageId
    holders: Seq[PageCopy]


@dataclass(slots=True, kw_only=True)
class Cursor:
    """How far a sequence has been looked at, in which of its lives."""

    life: int
    next: int = 0
    rows: int = 0
    """So many of its first pages have had a row to come."""


class PrecopyCourse(ABC, Generic[S]):
    """Made at the step boundary at which copying begins; a kind calls `_begin` once it knows the room.

    Args:
        layout: the destination.
        roster: the group's sequences.
        holding: their pages.
        owners: chooses owners in the destination.
        pace: how much each step copies.
        units: what is copied.
        rate: bytes that a step may copy on a rank.
        num_gathered_layers: layers whose weights the switch gathers.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        roster: Roster,
        holding: Holding,
        owners: OwnerAssignment,
        pace: PrecopyPace,
        units: PrecopyUnits,
        rate: int,
        num_gathered_layers: int,
    ) -> None:
        self.layout = layout
        self.promised: Owners = NO_OWNERS
        """Owners in the destination that rows to come are made for."""
        self.fallback = ""
        """Why the rest moves without being copied ahead; empty while that goes well."""
        self._rule = RULES[layout]
        self._roster = roster
        self._holding = holding
        self._owners = owners
        self._pace = pace
        self._yielded = pace.yielded
        self._units = units
        self._pages_a_step = max(rate // units.page, 1)
        self._layers_a_step = max(rate // max(units.layer_weights, 1), 1)
        self._num_layers = num_gathered_layers
        self._num_gathered = 0
        self._cursors: dict[SeqId, Cursor] = {}
        self._caught_up = False
        self._boundaries_left = 0

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
        left = sum(self._full_pages(s) - self._cursors[s.seq].next for s in running)
        # Once caught up, a page of each is what steps add; a sequence that has come since is more.
        most = max(self._pages_a_step, len(running)) if self._caught_up else 0
        return left <= most and not self.missing_layers

    @property
    def missing_layers(self) -> int:
        """Layers whose weights are not gathered yet."""
        return self._num_layers - self._num_gathered

    @abstractmethod
    def _known(self, sequence: Sequence) -> S | None:
        """The sequence, if its pages are in place and known to the ranks; else None."""

    @abstractmethod
    def _life(self, sequence: S) -> int:
        """Another number each time that it is computed again, after a preemption."""

    @abstractmethod
    def _held(self, sequence: S, index: int) -> HeldPage | None:
        """A full page of a sequence; None where it stays until the switching step."""

    @abstractmethod
    def _make_row(self, sequence: S, index: int, ranks: Seq[RankId]) -> RowToCome | None:
        """Room for a page on the ranks that will hold it; None where one has none."""

    def _begin(self, needed: Mapping[RankId, int]) -> None:
        """Set at how many boundaries the switch may still wait: twice the steps that its copies take."""
        steps = -(-max(needed.values(), default=0) // self._pages_a_step)
        steps += -(-self._num_layers // self._layers_a_step)
        steps += sum(map(self._full_pages, self._running())) // PAGES_A_STEP
        self._boundaries_left = 2 * steps + SPARE_BOUNDARIES

    def _needed(self) -> Counter[RankId]:
        """Second copies that each rank takes of the pages that are full now."""
        needed: Counter[RankId] = Counter()
        for sequence in self._running():
            here, there = self._holding.placement(sequence), self._placement(sequence)
            needed += second_copies(here, there, self._full_pages(sequence))
        return needed

    def _gather_layers(self) -> range:
        """Layers whose weights this step gathers; none where handoffs go first."""
        first, count = self._num_gathered, self._pace.take(self._units.layer_weights)
        self._num_gathered = min(first + count, self._num_layers)
        return range(first, self._num_gathered)

    def _look_further(self, copies: PageCopies) -> int:
        """Give pages their rows as far as the step carries the copies; returns how many got one."""
        rows, left, self._caught_up = 0, PAGES_A_STEP, True
        for sequence in self._running():
            # All are tried: where one has used up a rank's share, others may use another rank's.
            cursor, full = self._cursors[sequence.seq], self._full_pages(sequence)
            left += cursor.next
            rows += self._arrange(sequence, cursor, copies, end=min(full, left))
            left -= cursor.next
            self._caught_up &= cursor.next == full
        return rows

    def _arrange(self, sequence: S, cursor: Cursor, copies: PageCopies, *, end: int) -> int:
        rows, placement = 0, self._placement(sequence)
        while cursor.next < end:
            held, ranks = self._held(sequence, cursor.next), sorted(placement.ranks_of_page(cursor.next))
            if held is not None:
                if not copies.carries(held.holders, ranks):
                    break
                row = self._make_row(sequence, cursor.next, ranks)
                if row is not None:
                    copies.add(held.page, held.holders, row)
                    cursor.rows = cursor.next + 1 if cursor.rows == cursor.next else cursor.rows
                    rows += 1
            cursor.next += 1
        return rows

    def _running(self) -> list[S]:
        """Sequences whose pages are in place and known to the ranks, each with a cursor and an owner.

        One that runs no further row is left out: its pages may go, or be pinned, while a step copies them.
        """
        going_on = (self._known(s) for s in self._roster.going_on(SeqState.RUNNING) if s.remaining)
        running = [sequence for sequence in going_on if sequence is not None]
        fresh = {s.seq: s for s in running if self._is_fresh(s)}
        if fresh:
            kept = {seq: owner for seq, owner in self.promised.items() if seq not in fresh}
            self.promised = self._owners.assign(running, self._rule, projected=True, promised=kept)
            self._cursors |= {seq: Cursor(life=self._life(s)) for seq, s in fresh.items()}
        return running

    def _is_fresh(self, sequence: S) -> bool:
        cursor = self._cursors.get(sequence.seq)
        return cursor is None or cursor.life != self._life(sequence)

    def _placement(self, sequence: S) -> KvPlacement:
        """In the destination."""
        return self._rule.placement(
            num_ranks=self._holding.num_ranks,
            owner=self.promised[sequence.seq],
            rotation=sequence.rotation,
        )

    def _full_pages(self, sequence: S) -> int:
        """Pages that no row of this or a later step is written to."""
        return sequence.cached // self._holding.page_size


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
