"""Steps that a simulated group has under way, and the gaps between tokens that they make."""

from dataclasses import dataclass, field

from splash_core.layout.layout import Layout
from splash_core.simulate.ledger import Ledger
from splash_core.simulate.machine import StepRun
from splash_core.simulate.strides import Stride


@dataclass(slots=True)
class Run:
    """Steps of one shape."""

    batch: StepRun
    layout: Layout
    stride: Stride
    total: int
    """Steps until the next boundary."""
    done: int = 0
    """Of those, how many the scheduler knows to have ended."""
    fresh: dict[int, float] = field(default_factory=dict[int, float])
    """When the last token of each row that has just joined came."""

    def enter_gaps(self, ledger: Ledger, end: int) -> None:
        """Tokens of steps `done` … `end`-1: each came a step after the one before, but for rows just joined.

        A prompt's first token has none before it, and one that is computed again is left out.
        """
        drawing = sum(row.samples for row in self.batch.rows if row.num_rows == 1)
        first = self.stride.end(1)
        for last_token_s in self.fresh.values():
            ledger.gap(first - last_token_s)
        for index, (steps, step_s) in enumerate(self.stride.durations(self.done, end)):
            joined = len(self.fresh) if index == 0 else 0
            if steps * drawing > joined:
                ledger.gap(step_s, steps * drawing - joined)
        self.fresh = {}
