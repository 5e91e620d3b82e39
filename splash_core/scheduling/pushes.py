"""Pages on their way out of a group: what may be pushed when, and what pushes under way still read.

A page leaves as soon as the rows that fill it are planned: its push names their step, and each rank holds
its part back until it has computed that step (or a layer range of it). So nothing here waits for a result.
Invariant: a page is pinned from the order of its push until the push is quiet, whatever becomes of its
sequence; so no switch, preemption or end moves, frees or overwrites a page that is being read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, RequestId, SeqId, StepId
from splash_core.layout.layout import Matrices
from splash_core.layout.ownership import PageCopy, PageTable
from splash_core.scheduling.sequence import Roster, SeqState
from splash_core.scheduling.step import StepPlan

DONE = StepId(0)
"""The step of pages that were whole before the first step: nothing has to be waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """How much of a sequence's prompt may be pushed now."""

    run: int
    """Which computation of the prompt: one more after each preemption. Pages of two runs never mix."""
    pages: int
    """End of its pages that are whole once the steps planned so far have run, and may leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedPages:
    """Pages of one push, pinned until its end."""

    first_index: int
    copies: tuple[tuple[PageCopy, ...], ...]
    """Of pages `first_index …` of the prompt."""
    step: StepId
    """They are whole, and where `copies` says, once a rank has run this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPush:
    """One push under way, for audits."""

    push: int
    owner: RequestId
    lease: str
    """The lease that it fills in the other group."""
    pages: tuple[PageId, ...]
    age_s: float


@dataclass(slots=True)
class _Progress:
    run: int
    tokens: int = 0
    step: StepId = DONE
    """The last step that writes rows."""


@dataclass(frozen=True, slots=True)
class _OpenPush:
    owner: RequestId
    lease: str
    pages: tuple[PageId, ...]
    since: float


class PushBook:
    """All pushes of one group."""

    def __init__(self, *, table: PageTable, roster: Roster, clock: Callable[[], float]) -> None:
        self.held = False
        """True while a switch waits for pushes: prompts that are being computed start no new ones."""
        self._table = table
        self._roster = roster
        self._clock = clock
        self._progress: dict[SeqId, _Progress] = {}
        self._moved = DONE
        """The last step that moves pages."""
        self._open: dict[int, _OpenPush] = {}
        self._count = 0

    def planned(self, plan: StepPlan) -> None:
        """Take note of a step that ranks are about to run."""
        if plan.manifest is not None:
            self._moved = plan.step
        for seq in plan.finished:
            self._mirror_dropped(seq)
        for rows in plan.sequences:
            progress = self._progress.setdefault(rows.seq, _Progress(run=1))
            progress.tokens, progress.step = rows.end, plan.step

    def outgoing(self, seq: SeqId, *, first: int = 0) -> Outgoing | None:
        """What may be pushed of a sequence from page `first` on; None when nothing may now.

        A page that has been copied ahead for a switch leaves after the switch: its second copy is not wasted,
        and its slot is not given back while a step under way may be writing to it.
        """
        sequence = self._roster.find(seq)
        progress = self._progress.get(seq)
        if sequence is None or progress is None or sequence.ends_with is not None:
            return None
        if sequence.state is SeqState.WAITING:  # preempted: its pages have gone
            return None
        if self.held and sequence.state is SeqState.RUNNING:
            return None
        size = self._table.arena.page_size
        whole = progress.tokens >= sequence.num_prompt
        pages = -(-sequence.num_prompt // size) if whole else progress.tokens // size
        if self._table.ahead:
            rest = enumerate(sequence.pages[first:pages], first)
            pages = next((index for index, page in rest if page in self._table.ahead), pages)
        return Outgoing(run=progress.run, pages=pages)

    def begin(self, seq: SeqId, *, first: int, end: int, lease: str) -> tuple[int, PushedPages]:
        """Pin pages `first … end` of a sequence for a new push; returns its id and what to read."""
        outgoing = self.outgoing(seq, first=first)
        if outgoing is None or not 0 <= first < end <= outgoing.pages:
            raise InvariantBroken(f"pages {first}…{end} of sequence {seq} cannot be pushed now: {outgoing}")
        sequence = self._roster.get(seq)
        pages = tuple(sequence.pages[first:end])
        for page in pages:
            self._table.pin(page)
        self._count += 1
        self._open[self._count] = _OpenPush(sequence.request_id, lease, pages, self._clock())
        step = max(self._progress[seq].step, self._moved)
        copies = tuple(self._table.copies(page) for page in pages)
        return self._count, PushedPages(first_index=first, copies=copies, step=step)

    def end(self, push: int) -> None:
        """None of a push's reads is to come any more: its pages are free to move, or come back."""
        for page in self._open.pop(push).pages:
            self._table.unpin(page)

    @property
    def pages(self) -> frozenset[PageId]:
        """Pages that pushes read."""
        return frozenset(page for push in self._open.values() for page in push.pages)

    @property
    def left_over(self) -> tuple[PageId, ...]:
        """Pages that pushes read and no sequence holds any more."""
        return tuple(page for page in sorted(self.pages) if self._table.references(page) == 0)

    def read_leaving(self, wanted: Mapping[PageId, Sequence[RankId]], *, lent: Matrices) -> bool:
        """True when some push may read a copy that would leave its slot if pages went to `wanted`.

        Args:
            wanted: ranks per page.
            lent: matrices whose borrowed slots pages may lie in then.
        """
        return any(
            copy.rank not in wanted[page] or not self._table.pools[copy.rank].may_hold(copy.slot, lent)
            for page in self.pages.intersection(wanted)
            for copy in self._table.copies(page)
        )

    def opened(self) -> tuple[OpenPush, ...]:
        """Pushes under way, oldest first."""
        now = self._clock()
        return tuple(
            OpenPush(
                push=push, owner=entry.owner, lease=entry.lease, pages=entry.pages, age_s=now - entry.since
            )
            for push, entry in self._open.items()
        )

    def _mirror_dropped(self, seq: SeqId) -> None:
        """Ranks forget a sequence: because it has ended, awaits its handoff, or is to be computed again."""
        sequence = self._roster.find(seq)
        if sequence is None:
            self._progress.pop(seq, None)
        elif sequence.state is not SeqState.HANDOFF and seq in self._progress:
            self._progress[seq] = _Progress(run=self._progress[seq].run + 1)
