"""A batch as the sums that the cost model needs, per owner rank.

The model is *fluid*: a load may be one step (decode) or all steps that finish a set of prompts, and then
flops and bytes are totals while latencies count once per step. Summing per owner first makes a prediction
O(T) per layout, however large the batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

_MAX_KEYS = 1 << 62


class Rows(NamedTuple):
    """Rows of one request: positions `context … context+rows-1`, spread over `visits` steps."""

    rows: int
    context: int
    owner: int = 0
    visits: int = 1
    samples: int = 1
    """Tokens drawn from these rows: 1 for a decode row or a whole prompt, 0 for an inner chunk."""


@dataclass(frozen=True, slots=True)
class OwnerLoad:
    """Sums over the requests of one owner."""

    rows: float = 0.0
    pairs: float = 0.0
    """Query-key pairs under the causal mask."""
    chosen_pairs: float = 0.0
    """The same when each row attends to at most top-k keys (sparse attention)."""
    keys: float = 0.0
    """History tokens read, once per request and step."""
    chosen_keys: float = 0.0
    samples: float = 0.0
    runs: float = 0.0
    """Several rows of one request in one step, once per request and step; single rows attend together."""

    def plus(self, other: "OwnerLoad") -> "OwnerLoad":
        """The sums of both."""
        return OwnerLoad(
            self.rows + other.rows,
            self.pairs + other.pairs,
            self.chosen_pairs + other.chosen_pairs,
            self.keys + other.keys,
            self.chosen_keys + other.chosen_keys,
            self.samples + other.samples,
            self.runs + other.runs,
        )

    @classmethod
    def of(cls, item: Rows, *, top_k: int | None) -> "OwnerLoad":
        """The sums of one request."""
        return cls(*_sums(item, _MAX_KEYS if top_k is None else top_k))


_SUMS = fields(OwnerLoad)


def _sums(item: Rows, limit: int) -> tuple[float, ...]:
    """As the fields of `OwnerLoad`."""
    rows, context = item.rows, item.context
    pairs = rows * context + rows * (rows + 1) / 2
    keys = item.visits * context + rows * (item.visits + 1) / 2
    # Rows before position `limit` see all their keys, the others `limit` of them.
    short = min(max(limit - context, 0), rows)
    chosen = short * context + short * (short + 1) / 2 + (rows - short) * limit
    runs = item.visits if rows > 1 else 0
    return rows, pairs, chosen, keys, min(keys, chosen), item.samples, runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a group has to compute, in `steps` steps."""

    owners: tuple[OwnerLoad, ...]
    """One per rank: the requests whose preferred owner it is."""
    steps: int = 1

    @classmethod
    def of(cls, items: Iterable[Rows], *, num_ranks: int, steps: int = 1, top_k: int | None = None) -> "Load":
        """Sum the rows per owner.

        Args:
            items: rows of each request; `owner` is taken modulo T.
            num_ranks: T.
            steps: steps over which the rows are spread.
            top_k: most keys a row attends to, for sparse attention.
        """
        limit = _MAX_KEYS if top_k is None else top_k
        sums = [[0.0] * len(_SUMS) for _ in range(num_ranks)]
        for item in items:
            mine = sums[item.owner % num_ranks]
            for index, value in enumerate(_sums(item, limit)):
                mine[index] += value
        return cls(owners=tuple(OwnerLoad(*mine) for mine in sums), steps=max(steps, 1))

    @property
    def total(self) -> OwnerLoad:
        """Sums over all owners."""
        total = OwnerLoad()
        for owner in self.owners:
            total = total.plus(owner)
        return total
