"""The batches that are measured: phase × requests × context × rows, balanced and not, as a policy meets them.

Invariant: what is measured, in which order and what is held out follows from the settings alone. The order
is that of a hash of (seed, batch), so a run that ends early has measured a fair sample; of each phase every
third batch in that order is held out: the fit never sees it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from splash_core.cost.load import Load, Rows
from splash_core.policy.snapshot import Phase

HELD_OUT_EVERY = 3
_GOLDEN = 0.6180339887498949
"""Multiples of it spread evenly over [0, 1), however many there are."""


class Mix(StrEnum):
    """How lengths and owners are spread."""

    EVEN = "even"
    """Equal lengths, owners in turn."""
    MIXED = "mixed"
    """Histories spread over [1/4, 1] of the longest, owners in turn."""
    SKEWED = "skewed"
    """Mixed, and rank 0 owns three of four requests."""


@dataclass(frozen=True, slots=True)
class GridRequest:
    """One request's part of a step."""

    history: int
    rows: int
    owner: int
    draws: bool


@dataclass(frozen=True, slots=True)
class TestBatch:
    """One step of a group."""

    phase: Phase
    mix: Mix
    context: int
    """Longest history."""
    requests: tuple[GridRequest, ...]

    @property
    def num_rows(self) -> int:
        """Of the step."""
        return sum(request.rows for request in self.requests)

    @property
    def tokens(self) -> int:
        """Cached after the step."""
        return sum(request.history + request.rows for request in self.requests)

    @property
    def load(self) -> tuple[Rows, ...]:
        """What the cost model is told."""
        return tuple(
            Rows(request.rows, request.history, request.owner, samples=int(request.draws))
            for request in self.requests
        )

    def __str__(self) -> str:
        size = f"{len(self.requests)} × {self.context}"
        rows = f", {self.num_rows} rows" if self.phase is Phase.PREFILL else ""
        return f"{self.phase.value} {self.mix.value} {size}{rows}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Sizes to combine."""

    batches: Sequence[int]
    """Requests of decode steps."""
    prompts: Sequence[int]
    """Requests of prefill steps."""
    contexts: Sequence[int]
    rows: Sequence[int]
    """Of prefill steps, over all requests."""
    num_ranks: int
    most_tokens: int
    """Cached by one batch."""
    most_pairs: int
    """(Row, key) pairs of a prefill step."""

    def in_order(self, seed: int) -> tuple[TestBatch, ...]:
        """All batches that fit, phases in turn."""
        every = {str(batch): batch for batch in self._all() if self._fits(batch)}
        ordered = sorted(every, key=lambda name: _hash(seed, name))
        phases = [[every[name] for name in ordered if every[name].phase is phase] for phase in Phase]
        return tuple(batch for turn in zip_longest(*phases) for batch in turn if batch is not None)

    def _fits(self, batch: TestBatch) -> bool:
        pairs = Load.of(batch.load, num_ranks=self.num_ranks).total.pairs
        return batch.tokens <= self.most_tokens and (batch.phase is Phase.DECODE or pairs <= self.most_pairs)

    def _all(self) -> Iterator[TestBatch]:
        for mix in Mix:
            for context in self.contexts:
                for batch in self.batches:
                    if mix is Mix.EVEN or batch > 1:
                        yield self._decode(mix, context, batch)
            for history in (0, *self.contexts):
                for batch in self.prompts:
                    for rows in self.rows:
                        if rows >= 2 * batch and (mix is Mix.EVEN or batch > 1):
                            yield self._prefill(mix, history, batch, rows)

    def _decode(self, mix: Mix, context: int, batch: int) -> TestBatch:
        requests = tuple(
            GridRequest(self._history(mix, context, index), 1, self._owner(mix, index), draws=True)
            for index in range(batch)
        )
        return TestBatch(Phase.DECODE, mix, context, requests)

    def _prefill(self, mix: Mix, history: int, batch: int, rows: int) -> TestBatch:
        each, more = divmod(rows, batch)
        requests = tuple(
            GridRequest(
                self._history(mix, history, index),
                each + (index < more),
                self._owner(mix, index),
                # Of prompts side by side some end with the step; a whole step of one is an inner chunk.
                draws=batch > 1 and index % 2 == 0,
            )
            for index in range(batch)
        )
        return TestBatch(Phase.PREFILL, mix, history, requests)

    def _history(self, mix: Mix, longest: int, index: int) -> int:
        return longest if mix is Mix.EVEN else longest - int(longest * 0.75 * ((index * _GOLDEN) % 1.0))

    def _owner(self, mix: Mix, index: int) -> int:
        if mix is not Mix.SKEWED:
            return index % self.num_ranks
        return index // 4 % (self.num_ranks - 1) + 1 if self.num_ranks > 1 and index % 4 == 3 else 0


def held_out(number: int) -> bool:
    """Whether the phase's batch of this number, in the order of `Grid.in_order`, is kept from the fit."""
    return number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


def _hash(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
