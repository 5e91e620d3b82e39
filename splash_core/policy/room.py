"""Which requests a layout's pools hold: pages per rank under the layout's placement rule.

Waiting requests are placed as the scheduler would place them: in order, on the emptiest owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from splash_core.layout.layout import RULES, KvHistory, Layout
from splash_core.policy.snapshot import RunningSequence, Snapshot


class PlacedTokens(NamedTuple):
    """A request's tokens, and the owner it was placed on."""

    prompt: int
    output: int
    owner: int = 0

    @property
    def tokens(self) -> int:
        """All tokens that it will hold."""
        return self.prompt + self.output


@dataclass(slots=True)
class Room:
    """Free pages of each rank in one layout, as requests are placed."""

    history: KvHistory
    page_size: int
    total_pages: int
    """Pages of each rank's pool."""
    used: list[float]
    snapshot: Snapshot
    layout: Layout

    @classmethod
    def of(cls, snapshot: Snapshot, layout: Layout) -> "Room":
        """Empty pools of `layout`."""
        return cls(
            history=RULES[layout].history,
            page_size=snapshot.page_size,
            total_pages=snapshot.pools[layout].total_tokens // snapshot.page_size,
            used=[0.0] * snapshot.num_ranks,
            snapshot=snapshot,
            layout=layout,
        )

    def clear(self) -> None:
        """Empty the pools again."""
        self.used = [0.0] * len(self.used)

    def could_hold(self, tokens: int) -> bool:
        """Whether an empty group could hold one request of so many tokens."""
        return self._pages_per_holder(tokens) <= self.total_pages

    def place_running(self, *, horizon: int) -> str:
        """Place the running requests, with all tokens that they may still hold.

        Args:
            horizon: tokens of output that must fit for a layout to be entered: a layout that is outgrown
                within the steps for which it was chosen would have to preempt what it was entered for.

        Returns:
            Why the running histories do not fit, or an empty text.
        """
        for running in self.snapshot.running:
            self._take(_held(running, min(running.projected_output, horizon)), running.owner)
        refusal = self._overflow()
        self.clear()
        for running in self.snapshot.running:
            self._take(_held(running, running.projected_output), running.owner)
        return refusal

    def admit(self, waiting: Sequence[PlacedTokens]) -> tuple[list[PlacedTokens], list[PlacedTokens]]:
        """Place waiting requests in order until one does not fit.

        Returns:
            Those placed, with their owners, and the rest.
        """
        placed: list[PlacedTokens] = []
        for index, demand in enumerate(waiting):
            owner = min(range(len(self.used)), key=lambda rank: self.used[rank])
            if not self._fits(demand.tokens, owner):
                return placed, list(waiting[index:])
            self._take(demand.tokens, owner)
            placed.append(demand._replace(owner=owner))
        return placed, []

    def _pages_per_holder(self, tokens: int) -> float:
        pages = -(-tokens // self.page_size)
        return pages / len(self.used) if self.history is KvHistory.STRIPED else pages

    def _holders(self, owner: int) -> range:
        if self.history is KvHistory.OWNER:
            rank = owner % len(self.used)
            return range(rank, rank + 1)
        return range(len(self.used))

    def _take(self, tokens: int, owner: int) -> None:
        if self.history is KvHistory.OWNER:
            self.used[owner % len(self.used)] += -(-tokens // self.page_size)
            return
        pages = self._pages_per_holder(tokens)
        for rank in self._holders(owner):
            self.used[rank] += pages

    def _fits(self, tokens: int, owner: int) -> bool:
        pages = self._pages_per_holder(tokens)
        return all(self.used[rank] + pages <= self.total_pages for rank in self._holders(owner))

    def _overflow(self) -> str:
        fullest = max(range(len(self.used)), key=lambda rank: self.used[rank])
        if self.used[fullest] <= self.total_pages:
            return ""
        return (
            f"{self.layout}: the running histories need {self.used[fullest]:.0f} pages on rank {fullest}, "
            f"its pool has {self.total_pages}"
        )


def _held(running: RunningSequence, output: int) -> int:
    return running.context_tokens + max(running.step_rows, running.remaining_prompt) + output
