"""What a group's pools hold in one layout: the only place that turns pages into tokens.

Every rank's pool has the same number of pages, so a group's capacity follows from one pool and the
layout's rule. Invariant: the arithmetic uses the placement that the rule gives, never a layout's name.
"""

from dataclasses import dataclass
from typing import Self

from splash_core.ids import RankId
from splash_core.layout.layout import KvPlacement, LayoutRule
from splash_core.layout.slots import ArenaMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """T pools of one size under one rule."""

    rule: LayoutRule
    num_ranks: int
    page_size: int
    """Tokens per page."""
    pages: int
    """Pages that one rank can hold; negative when not even what is fixed fits."""

    @classmethod
    def of(cls, arena: ArenaMap, rule: LayoutRule) -> Self:
        """The capacity of a group whose ranks have this arena."""
        return cls(
            rule=rule,
            num_ranks=arena.num_ranks,
            page_size=arena.page_size,
            pages=arena.num_pages(rule.lends),
        )

    @property
    def rank_tokens(self) -> int:
        """Tokens that one rank can hold."""
        return max(self.pages, 0) * self.page_size

    @property
    def distinct_tokens(self) -> int:
        """Tokens of distinct history that the group can hold: a replicated one counts once."""
        return self.rank_tokens * self.num_ranks // self._copies

    @property
    def longest_request(self) -> int:
        """Tokens that one sequence alone can hold, whatever its owner and rotation."""
        return self.rank_tokens * self.num_owners // self._copies

    @property
    def num_owners(self) -> int:
        """Ranks that hold some of a sequence's pages."""
        return len(self._placement.owners)

    @property
    def _copies(self) -> int:
        return len(self._placement.ranks_of_page(0))

    @property
    def _placement(self) -> KvPlacement:
        return self.rule.placement(num_ranks=self.num_ranks, owner=RankId(0), rotation=0)
