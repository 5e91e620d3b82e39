"""How a rule divides a load: rows at home, rows times heads per matrix, and attention work per rank.

The only place in `cost` that knows what a history placement means for work.
"""

import math
from dataclasses import dataclass

from splash_core.cost.load import Load, OwnerLoad
from splash_core.layout.forms import CpStorage
from splash_core.layout.layout import KvHistory, LayoutRule, Matrix, Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A load as one rule divides it over T ranks. Rows are totals over `steps` steps."""

    rule: LayoutRule
    num_ranks: int
    steps: int
    storage: CpStorage
    total: OwnerLoad
    home_rows: float
    """max_j N_j: rows at home on the fullest rank."""
    home_min: float
    """min_j N_j."""
    drawn: float
    """Tokens drawn on the rank that draws most."""
    query_rows: float
    """Rows for which a rank computes queries with a replicated W_QB, on the fullest rank."""
    attending: tuple[OwnerLoad, ...]
    """Attention work of each rank that may be the fullest."""
    head_fraction: float
    """Of all heads, those that one rank attends with."""

    @classmethod
    def of(cls, rule: LayoutRule, load: Load, *, storage: CpStorage) -> "Shares":
        """Divide `load` as `rule` says."""
        ranks, total = len(load.owners), load.total
        even = load.steps * math.ceil(total.rows / (load.steps * ranks))
        home, home_min, query = float(even), float(total.rows // ranks), float(even)
        drawn = total.samples / ranks
        attending: tuple[OwnerLoad, ...] = (total,)
        if rule.history is KvHistory.OWNER:
            home = query = max(owner.rows for owner in load.owners)
            home_min = min(owner.rows for owner in load.owners)
            drawn = max(owner.samples for owner in load.owners)
            attending = load.owners
        elif rule.history is KvHistory.STRIPED:
            query = total.rows if storage is CpStorage.PASS_Q else query
            attending = (_striped(total, ranks, even_rows=even, storage=storage),)
        heads_split = rule.history is KvHistory.ALL and rule.projections[Matrix.Q_B] is Projection.SHARDED
        return cls(
            rule=rule,
            num_ranks=ranks,
            steps=load.steps,
            storage=storage,
            total=total,
            home_rows=home,
            home_min=home_min,
            drawn=drawn,
            query_rows=query,
            attending=attending,
            head_fraction=1 / ranks if heads_split else 1.0,
        )

    def fraction(self, matrix: Matrix) -> float:
        """f of one projection matrix: the part of it that a rank holds."""
        return 1 / self.num_ranks if self.sharded(matrix) else 1.0

    def sharded(self, matrix: Matrix) -> bool:
        """Whether the matrix is divided by heads."""
        return self.rule.projections[matrix] is Projection.SHARDED

    @property
    def merges(self) -> bool:
        """Whether each rank attends over its part of a history, for all rows."""
        return self.rule.history is KvHistory.STRIPED and self.storage is CpStorage.PASS_Q

    def row_heads(self, heads: int, matrix: Matrix) -> float:
        """Rows times heads that pass through `matrix` on the fullest rank."""
        if self.sharded(matrix):
            return self.total.rows * heads / self.num_ranks
        # W_O is applied at home, after partial outputs have been merged there.
        return heads * (self.home_rows if matrix is Matrix.O else self.query_rows)


def _striped(total: OwnerLoad, ranks: int, *, even_rows: float, storage: CpStorage) -> OwnerLoad:
    """One rank's attention work when every history is striped over all ranks."""
    if storage is CpStorage.PASS_KV:
        # Rows are split, zigzag, so that pairs balance; each rank reads the whole gathered history.
        return OwnerLoad(
            even_rows,
            total.pairs / ranks,
            total.chosen_pairs / ranks,
            total.keys,
            min(total.keys, total.chosen_pairs / ranks),
            runs=total.runs,
        )
    return OwnerLoad(
        total.rows,
        total.pairs / ranks,
        total.chosen_pairs / ranks,
        total.keys / ranks,
        total.chosen_keys / ranks,
        runs=total.runs,
    )
