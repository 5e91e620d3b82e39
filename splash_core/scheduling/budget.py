"""How many prompt rows a step takes, and how they are divided over the ranks that hold histories.

Where a history lies on one rank, that rank computes all of its rows, so a step takes as long as its fullest
rank: the budget is divided over owners first, and what an owner cannot use goes to the oldest prompts.
Invariant: the oldest prompt gets a row in every step, each owner's oldest does where the budget has a row for
each owner, and no row of the budget is left while some prompt could use it.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class StepBudget:
    """Rows of a step while prompts are being computed; decode rows come first and count."""

    most: int
    """What the working memory of a step is sized for."""
    rows: int = 0
    """What the next steps take, at most `most`."""

    def __post_init__(self) -> None:
        self.rows = self.rows or self.most

    def limit(self, rows: int | None) -> None:
        """Take so many rows from the next step on, at least 1; None: the most."""
        self.rows = self.most if rows is None else max(min(rows, self.most), 1)


def share(budget: int, lanes: int) -> int:
    """Rows of each of so many owners in the first round."""
    return max(budget // max(lanes, 1), 1)


def divide_rows(wants: Sequence[tuple[Hashable, int]], budget: int) -> list[int]:
    """Rows of each prompt in a step, if none lacks pages and none is admitted.

    Args:
        wants: (the ranks that hold its history, rows that are left), oldest first.
        budget: rows of the step.
    """
    part = share(budget, len({lane for lane, _ in wants}))
    left = {lane: part for lane, _ in wants}
    taken: list[int] = []
    for lane, rows in wants:
        taken.append(min(rows, left[lane], budget))
        left[lane] -= taken[-1]
        budget -= taken[-1]
    for index, (_, rows) in enumerate(wants):
        more = min(rows - taken[index], budget)
        taken[index] += more
        budget -= more
    return taken
