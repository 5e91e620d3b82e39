"""A request of a benchmark: its tokens are nobody's, but the same whenever they are asked for."""

from dataclasses import dataclass, field

from splash_core.ids import PageId, RankId, SeqId

_STRIDE_TEXT, _STRIDE_POSITION = 7919, 104_729
"""Primes that spread token ids over the vocabulary."""


@dataclass(slots=True, kw_only=True)
class BenchRequest:
    """What the group knows of it."""

    seq: SeqId
    text: int
    """Which of all token sequences it has."""
    vocab: int
    owner: RankId
    history: int
    """Tokens to which the request is taken back."""
    cached: int = 0
    pages: list[PageId] = field(default_factory=list)
    announced: bool = False
    told: int = 0
    """Pages that the ranks' mirrors know as they are."""

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens `start … end - 1`."""
        first = (self.text + 1) * _STRIDE_TEXT
        return tuple((first + at * _STRIDE_POSITION) % self.vocab for at in range(start, end))
