"""Pages as numbers: how many each sequence holds on each rank, without a table that names them.

Capacity, precedence and placements are those of the product (`scheduling.holding`, `layout`); what a table
adds, which slot a page lies in, is left out: slots of one rank are alike here.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from splash_core.ids import PageId, RankId, RequestId, SeqId
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import KvMode, KvPlacement, Layout
from splash_core.scheduling.holding import Holding, Present, spread
from splash_core.scheduling.roles import RoleRules
from splash_core.scheduling.sequence import Roster, SeqState, Sequence
from splash_core.simulate.copies import CopiesAhead
from splash_core.simulate.workload import Request
from splash_core.spec.request import SamplingParams

_NOWHERE = KvPlacement(owners=(RankId(0),), mode=KvMode.STRIPED)


@dataclass(slots=True, kw_only=True)
class CountedSequence(Sequence):
    """A sequence of so many tokens in so many pages; `tokens` and `pages` stay empty."""

    key: int
    """Of its request."""
    known: int
    """Tokens, prompt included, that are known."""
    output: int
    """Tokens that it will generate."""
    end_row: int
    """Position after the last row that it may run here."""
    held_pages: int = 0
    where: KvPlacement = _NOWHERE
    """Of the pages that it holds."""
    known_to_ranks: bool = False
    """It has been in a step, so ranks could mirror its pages."""
    life: int = 0
    """Times that its pages were taken away."""

    @property
    def length(self) -> int:
        """Tokens, those that are being drawn included."""
        return self.known + self.drawing

    @property
    def remaining(self) -> int:
        """Rows it could run now; as in `Sequence`, which schedulers ask for most often."""
        length = self.known + self.drawing
        return (length if length < self.end_row else self.end_row) - self.cached

    @property
    def decoding(self) -> bool:
        """True when its next row is its last token and that token is generated; as in `Sequence`."""
        length = self.known + self.drawing
        if length <= self.num_prompt:
            return False
        return (length if length < self.end_row else self.end_row) - self.cached == 1

    @property
    def num_pages(self) -> int:
        """Pages that it holds."""
        return self.held_pages

    @property
    def num_generated(self) -> int:
        """Output tokens that are known."""
        return self.known - self.num_prompt


def new_sequence(request: Request, *, seq: SeqId, rules: RoleRules, num_ranks: int) -> CountedSequence:
    """A request's sequence, which has nothing yet."""
    sampling = SamplingParams(max_tokens=request.max_tokens)
    max_drawn = rules.max_drawn(sampling)
    return CountedSequence(
        seq=seq,
        request_id=RequestId(str(request.key)),
        sampling=sampling,
        tokens=[],
        num_prompt=request.prompt_tokens,
        held_tokens=rules.held_tokens(request.prompt_tokens, sampling),
        max_drawn=max_drawn,
        end_row=request.prompt_tokens + max(max_drawn, 1) - 1,
        rotation=seq % num_ranks,
        key=request.key,
        known=request.prompt_tokens,
        output=request.output_tokens,
    )


class CountedHolding(Holding):
    """Free pages of each rank, and who holds the others."""

    def __init__(self, *, roster: Roster, present: Present, capacities: Mapping[Layout, Capacity]) -> None:
        capacity = capacities[present.layout]
        super().__init__(
            roster=roster, present=present, num_ranks=capacity.num_ranks, page_size=capacity.page_size
        )
        self.used = [0] * capacity.num_ranks
        """Pages on each rank, without copies made ahead."""
        self.ahead = CopiesAhead(capacity.num_ranks)
        self.clear_for: Layout | None = None
        """While a switch to it copies ahead, no new page goes where its weights will be."""
        self._capacities = capacities
        self._vacated = [0] * capacity.num_ranks
        self._resting = self._vacated
        """Free pages of each rank that a step under way still reads: no lease gets them."""

    def placement_in(self, layout: Layout, sequence: Sequence, owner: RankId) -> KvPlacement:
        """Where `layout` would put the sequence's pages if `owner` owned it."""
        rule = self._capacities[layout].rule
        return rule.placement(num_ranks=self.num_ranks, owner=owner, rotation=sequence.rotation)

    def capacity(self, layout: Layout) -> Capacity:
        """What the pools of all ranks hold in a layout."""
        return self._capacities[layout]

    def free(self, rank: RankId) -> int:
        """New pages that a rank could take now."""
        free = self.free_in(self._present.layout, rank)
        if self.clear_for is not None:
            free = min(free, self.free_in(self.clear_for, rank))
        return max(free - self._resting[rank], 0)

    def vacate(self, change: Seq[int]) -> None:
        """Pages that a step moves away from a rank, of what `change` says."""
        self._vacated = [pages + max(-more, 0) for pages, more in zip(self._vacated, change, strict=True)]

    def rest(self) -> None:
        """The step that moves pages is under way."""
        self._resting, self._vacated = self._vacated, [0] * self.num_ranks

    def end_rest(self) -> None:
        """It has ended."""
        self._resting = [0] * self.num_ranks

    def free_in(self, layout: Layout, rank: RankId) -> int:
        """Free pages of a rank if the group were in `layout`, as things lie now."""
        return max(self._capacities[layout].pages - self.used[rank] - self.ahead.on_rank[rank], 0)

    def lack(self, ordinary: Mapping[RankId, int]) -> dict[RankId, int]:
        """Of so many free slots on each rank, those that are missing."""
        lack = {rank: count - self.free(rank) for rank, count in ordinary.items()}
        return {rank: count for rank, count in lack.items() if count > 0}

    def ranks(self, page: PageId) -> tuple[RankId, ...]:
        """No page has a name here."""
        raise NotImplementedError(f"page {page} is not counted by itself")

    def settle(self) -> None:
        """Nothing is left over."""

    def extend(self, sequence: Sequence, tokens: int) -> int:
        """As `grow`, taking room of copies ahead back as needed."""
        while (covered := self.grow(sequence, tokens)) < tokens:
            ranks = self.placement(sequence).ranks_of_page(sequence.num_pages)
            full = [rank for rank in ranks if self.free(rank) == 0]
            if not all(map(self.ahead.give_back, full)):
                break
        return covered

    def grow(self, sequence: Sequence, tokens: int) -> int:
        """Allocate pages for the first `tokens` tokens as far as they are free; returns tokens covered."""
        assert isinstance(sequence, CountedSequence)
        wanted, held = self.pages_for(tokens), sequence.held_pages
        if wanted <= held:
            return tokens
        placement = self.placement(sequence)
        new = self._affordable(placement, held, wanted)
        self.take(sequence, placement, new)
        return min(tokens, new * self.page_size)

    def take(self, sequence: CountedSequence, placement: KvPlacement, pages: int) -> None:
        """The sequence now holds `pages` pages, as `placement` says; what it held before is free."""
        if placement.alike and placement is sequence.where:
            for rank in placement.owners:
                self.used[rank] += pages - sequence.held_pages
            sequence.held_pages = pages
            return
        for rank, count in enumerate(self.change(sequence, placement, pages)):
            self.used[rank] += count
        sequence.where, sequence.held_pages = placement, pages

    def change(self, sequence: CountedSequence, placement: KvPlacement, pages: int) -> list[int]:
        """By how much `take` would change what each rank holds, `[T]`."""
        after = spread(placement, pages, self.num_ranks)
        if sequence.held_pages == 0:
            return after
        before = spread(sequence.where, sequence.held_pages, self.num_ranks)
        return [new - old for new, old in zip(after, before, strict=True)]

    def fits(self, layout: Layout, change: Seq[int]) -> bool:
        """Whether every rank's pool in `layout` holds what it holds now and `change` more."""
        pages = self._capacities[layout].pages
        taken = zip(self.used, self.ahead.on_rank, change, strict=True)
        return all(used + copies + more <= pages for used, copies, more in taken)

    def drop_pages(self, sequence: Sequence) -> None:
        """Give all pages of a sequence back."""
        assert isinstance(sequence, CountedSequence)
        self.ahead.drop(sequence.seq)
        self.take(sequence, sequence.where, 0)
        sequence.cached = 0
        sequence.known_to_ranks = False
        sequence.life += 1

    def copies_per_rank(self, sequence: Sequence) -> list[int]:
        """Pages of the sequence on each rank, `[T]`."""
        assert isinstance(sequence, CountedSequence)
        return spread(sequence.where, sequence.held_pages, self.num_ranks)

    def holders(self, sequence: Sequence) -> set[RankId]:
        """Ranks that hold some page of the sequence."""
        return {RankId(rank) for rank, count in enumerate(self.copies_per_rank(sequence)) if count}

    def in_place(self, sequence: CountedSequence) -> bool:
        """True when its pages lie where the present layout wants them."""
        return sequence.where == self.placement(sequence)

    def stray(self) -> list[int]:
        """Pages on each rank that no sequence holds; all 0 if the counts are right."""
        held = [0] * self.num_ranks
        for sequence in self._roster.within(*SeqState):
            for rank, count in enumerate(self.copies_per_rank(sequence)):
                held[rank] += count
        return [used - count for used, count in zip(self.used, held, strict=True)]

    def _affordable(self, placement: KvPlacement, held: int, wanted: int) -> int:
        """How many pages the sequence holds in the end, if it takes one after the other."""
        if placement.alike:
            return min(wanted, held + min(self.free(rank) for rank in placement.owners))
        taken = [0] * self.num_ranks
        for index in range(held, wanted):
            (rank,) = placement.ranks_of_page(index)
            if self.free(rank) <= taken[rank]:
                return index
            taken[rank] += 1
        return wanted
