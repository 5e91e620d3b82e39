"""The attention layouts as rules over two independent choices.

Under MLA one latent row per token serves all heads, so where the head-indexed projections live and
which ranks hold a request's KV history are independent (docs/model.md §1). A layout is one setting of both.
Nothing else in the code base knows what "TP" or "DOP" means, except one file each in `attention/`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from splash_core.ids import RankId


class Layout(StrEnum):
    """Names of the attention layouts."""

    TP = "TP"
    CP = "CP"
    DP = "DP"
    DOP = "DOP"
    DOP_P = "DOP-P"


STANDARD_LAYOUTS = (Layout.TP, Layout.CP, Layout.DP, Layout.DOP)
"""What a group offers unless it is told otherwise; the others are variants of these."""


def shown_layouts(named: Collection[Layout]) -> tuple[Layout, ...]:
    """The standard layouts and those named, in the order of `Layout`: what operators are told about."""
    return tuple(layout for layout in Layout if layout in STANDARD_LAYOUTS or layout in named)


class Projection(StrEnum):
    """Where one head-indexed projection matrix lives."""

    SHARDED = "sharded"
    """Rank j holds heads j·H/T … (j+1)·H/T - 1."""
    REPLICATED = "replicated"
    """Every rank holds all heads."""


class Matrix(StrEnum):
    """The head-indexed projections of one layer."""

    Q_B = "q_b"
    """`[H·(n+p), r_q]` (or `[H·(n+p), d]` without q_lora)."""
    KV_B = "kv_b"
    """`[H, n+v, r]`: W_UK and W_UV are strided views of it."""
    O = "o"  # noqa: E741
    """`[H·v, d]`: head-major, so that a shard is a prefix of rows."""


Matrices = frozenset[Matrix]

ORDINARY_ONLY: Matrices = frozenset()
"""As the matrices whose borrowed slots pages may use (docs/model.md §3): none."""


class KvMode(StrEnum):
    """How a request's pages spread over its owners."""

    REPLICATED = "replicated"
    """Each page on every owner."""
    STRIPED = "striped"
    """Page k on one owner, the owners taking turns."""


class KvHistory(StrEnum):
    """Where a layout puts a request's history."""

    ALL = "all"
    OWNER = "owner"
    STRIPED = "striped"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPlacement:
    """Where *new* pages of one request go. Pages that exist keep the ranks they have."""

    owners: tuple[RankId, ...]
    mode: KvMode
    rotation: int = 0
    """First owner in turn of a striped request, so that page 0 of everything does not meet on one rank."""

    def __post_init__(self) -> None:
        if not self.owners or len(set(self.owners)) != len(self.owners):
            raise ValueError(f"owners must be distinct and at least one, got {self.owners}")

    @property
    def alike(self) -> bool:
        """True when every owner holds every page."""
        return len(self.owners) == 1 or self.mode is KvMode.REPLICATED

    def ranks_of_page(self, index: int) -> tuple[RankId, ...]:
        """The ranks that hold page `index` (0-based) of the request."""
        if self.mode is KvMode.REPLICATED:
            return self.owners
        return (self.owners[(self.rotation + index) % len(self.owners)],)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRule:
    """One layout: a placement for each projection and a rule that fills every request's placement."""

    layout: Layout
    projections: Mapping[Matrix, Projection]
    history: KvHistory

    @property
    def shards(self) -> bool:
        """True when some projection is sharded, so that the heads must split evenly over the ranks."""
        return bool(self.lends)

    @property
    def lends(self) -> Matrices:
        """Matrices whose borrowed slots may hold KV pages: those that are not replicated over them."""
        return frozenset(m for m, kind in self.projections.items() if kind is Projection.SHARDED)

    @property
    def fills(self) -> Matrices:
        """Matrices that fill their borrowed slots with weights."""
        return frozenset(self.projections) - self.lends

    def placement(self, *, num_ranks: int, owner: RankId, rotation: int) -> KvPlacement:
        """The placement of a request whose preferred owner is `owner`."""
        return _placement(self.history, num_ranks, owner, rotation)


@lru_cache(maxsize=1024)
def _placement(history: KvHistory, num_ranks: int, owner: RankId, rotation: int) -> KvPlacement:
    """Schedulers ask for the same few again and again."""
    everyone = tuple(RankId(rank) for rank in range(num_ranks))
    if history is KvHistory.ALL:
        return KvPlacement(owners=everyone, mode=KvMode.REPLICATED)
    if history is KvHistory.OWNER:
        return KvPlacement(owners=(owner,), mode=KvMode.STRIPED)
    return KvPlacement(owners=everyone, mode=KvMode.STRIPED, rotation=rotation)


def _rule(layout: Layout, history: KvHistory, *, replicated: Collection[Matrix]) -> LayoutRule:
    projections = dict.fromkeys(Matrix, Projection.SHARDED)
    projections |= dict.fromkeys(replicated, Projection.REPLICATED)
    return LayoutRule(layout=layout, projections=MappingProxyType(projections), history=history)


RULES: Mapping[Layout, LayoutRule] = MappingProxyType(
    {
        rule.layout: rule
        for rule in (
            _rule(Layout.TP, KvHistory.ALL, replicated=()),
            _rule(Layout.CP, KvHistory.STRIPED, replicated=Matrix),
            _rule(Layout.DP, KvHistory.OWNER, replicated=Matrix),
            _rule(Layout.DOP, KvHistory.OWNER, replicated=()),
            _rule(Layout.DOP_P, KvHistory.OWNER, replicated=(Matrix.KV_B,)),
        )
    }
)

LENDING_ORDER: tuple[Matrix, ...] = tuple(
    sorted(Matrix, key=lambda m: sum(m in rule.fills for rule in RULES.values()))
)
"""Whose borrowed slots pages take first: those of the matrix that the fewest layouts replicate, so that the
fewest switches have to clear them."""
