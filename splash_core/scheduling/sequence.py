"""One request inside a group, from admission to its last page; and the roster of all of them.

Invariant: a sequence holds pages exactly in the states that `holds_pages` names, and KV exists, or is under
way, for a prefix of its tokens, of which the last ones may still be being drawn.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, RankId, RequestId, SeqId, StepId
from splash_core.scheduling.step import TokenLogprobs
from splash_core.spec.request import Purpose, SamplingParams


class SeqState(StrEnum):
    """Where a sequence stands."""

    WAITING = "waiting"
    """Not started, or preempted: holds nothing, is computed from its tokens."""
    LEASED = "leased"
    """Its pages are promised to a writer outside and pinned."""
    LANDED = "landed"
    """Its prompt's KV has arrived; it runs once its pages are where the layout wants them."""
    RUNNING = "running"
    """Computes its prompt or generates."""
    HANDOFF = "handoff"
    """Prefilled; its pages are pinned until the push is acknowledged."""


@dataclass(slots=True, kw_only=True)
class Sequence:
    """The state of one sequence. Mutable; owned by the scheduler."""

    seq: SeqId
    request_id: RequestId
    sampling: SamplingParams
    tokens: list[int]
    """All known tokens, prompt first."""
    num_prompt: int
    held_tokens: int
    """Most tokens whose KV it may ever hold in this group."""
    max_drawn: int
    """Output tokens, those drawn elsewhere included, after which this group draws no more."""
    state: SeqState = SeqState.WAITING
    cached: int = 0
    """Tokens whose KV is in pages once all steps under way have ended = position of the next row."""
    drawing: int = 0
    """Tokens after the known ones that steps under way draw."""
    pages: list[PageId] = field(default_factory=list[PageId])
    owner: RankId = RankId(0)
    """Preferred owner, for layouts that put a history on one rank."""
    rotation: int = 0
    """First rank in turn, for layouts that stripe."""
    prompt_scores: dict[int, TokenLogprobs] = field(default_factory=dict[int, TokenLogprobs])
    """Prompt log-probabilities by position, until they are reported."""
    prompt_reported: bool = False
    since: float = 0.0
    """When it came, seconds on the scheduler's clock."""
    ends_with: StepId | None = None
    """Finished or cancelled while steps were under way that may use its pages; dropped when this one, the
    last of them, has ended."""

    @property
    def precedence(self) -> tuple[Purpose, float, SeqId]:
        """Smaller goes first: users', then arrival, moved by priority. It never changes, so no user waits
        for ever."""
        return *self.sampling.precedence(self.since), self.seq

    @property
    def length(self) -> int:
        """Tokens, those that are being drawn included."""
        return len(self.tokens) + self.drawing

    @property
    def remaining(self) -> int:
        """Rows it could run now; 0 when it runs none any more here, for the last token drawn needs no row."""
        last = self.num_prompt + max(self.max_drawn, 1) - 1
        return min(self.length, last) - self.cached

    @property
    def num_pages(self) -> int:
        """Pages that it holds."""
        return len(self.pages)

    @property
    def num_generated(self) -> int:
        """Output tokens that are known."""
        return len(self.tokens) - self.num_prompt

    @property
    def decoding(self) -> bool:
        """True when its next row is its last token and that token is generated."""
        return self.remaining == 1 and self.length > self.num_prompt

    @property
    def holds_pages(self) -> bool:
        """True in the states in which it counts against pools and the running cap."""
        return self.state is not SeqState.WAITING

    @property
    def movable(self) -> bool:
        """True when its pages may move, or be taken away: nobody outside uses them."""
        return self.state in (SeqState.RUNNING, SeqState.LANDED)


class Roster:
    """All live sequences of a group, in their order of precedence."""

    def __init__(self) -> None:
        self._sequences: dict[SeqId, Sequence] = {}
        self._ordered: list[Sequence] = []
        self._next = 1

    @property
    def next_id(self) -> SeqId:
        """The id of the sequence that is entered next; never reused."""
        return SeqId(self._next)

    def put(self, sequence: Sequence) -> None:
        """Enter the sequence that was given `next_id`."""
        assert sequence.seq == self._next
        self._sequences[sequence.seq] = sequence
        insort(self._ordered, sequence, key=_precedence)
        self._next += 1

    def remove(self, seq: SeqId) -> None:
        """Forget a sequence that holds nothing any more."""
        sequence = self._sequences.pop(seq)
        del self._ordered[bisect_left(self._ordered, sequence.precedence, key=_precedence)]

    def find(self, seq: SeqId) -> Sequence | None:
        """The sequence, or None when it has ended."""
        return self._sequences.get(seq)

    def get(self, seq: SeqId) -> Sequence:
        """The sequence.

        Raises:
            InvariantBroken: it has ended or never was.
        """
        sequence = self._sequences.get(seq)
        if sequence is None:
            raise InvariantBroken(f"sequence {seq} does not exist (any more)")
        return sequence

    def __iter__(self) -> Iterator[Sequence]:
        return iter(tuple(self._ordered))

    def __len__(self) -> int:
        return len(self._sequences)

    def within(self, *states: SeqState) -> list[Sequence]:
        """Sequences in any of the states, in order of precedence."""
        return [sequence for sequence in self._ordered if sequence.state in states]

    def going_on(self, state: SeqState) -> list[Sequence]:
        """Sequences in a state that have not ended, in order of precedence."""
        return [sequence for sequence in self.within(state) if sequence.ends_with is None]

    def active(self) -> list[Sequence]:
        """Sequences that hold pages, in order of precedence."""
        return [sequence for sequence in self._ordered if sequence.holds_pages]


def _precedence(sequence: Sequence) -> tuple[Purpose, float, SeqId]:
    return sequence.precedence
