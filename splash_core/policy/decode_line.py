"""A decode group as a line of requests that each need so many tokens: all that run advance together.

Invariant: between two events (a request lands, or ends) the number of running requests is constant, and so
is the step time.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from splash_core.cost.load import Load, Rows
from splash_core.cost.model import CostModel
from splash_core.cost.step_kind import StepKind
from splash_core.layout.layout import RULES, Layout


@dataclass(slots=True, kw_only=True)
class DecodeLine:
    """The group; it replays its steps, as the paper's does."""

    model: CostModel
    layout: Layout
    context: int
    """Tokens of each request's history, about."""
    most: int
    """Requests that run at a time; others wait their turn."""
    _step_s: dict[int, float] = field(default_factory=dict[int, float])

    def step_s(self, running: int) -> float:
        """Predicted time of a step of so many requests, spread over the owners in turn."""
        if running not in self._step_s:
            ranks = self.model.num_ranks
            rows = [Rows(1, self.context, index % ranks) for index in range(running)]
            load = Load.of(rows, num_ranks=ranks, top_k=self.model.top_k)
            prediction = self.model.predict(RULES[self.layout], load, kind=StepKind.REPLAYED)
            self._step_s[running] = prediction.total_s
        return self._step_s[running]

    def finish(self, landed: Sequence[float], *, tokens: int) -> float:
        """When the last of the requests that land at these times has its `tokens` tokens."""
        waiting, running = deque(sorted(landed)), deque[float]()
        clock = done = 0.0
        while waiting or running:
            # `running` holds, per request, the value of `done` at which it ends: equal needs end in order.
            while waiting and waiting[0] <= clock and len(running) < self.most:
                waiting.popleft()
                running.append(done + tokens)
            if not running:
                clock = waiting[0]
                continue
            step = self.step_s(len(running))
            to_end = (running[0] - done) * step
            arrival = waiting[0] - clock if waiting and len(running) < self.most else math.inf
            if arrival < to_end:
                done += arrival / step
                clock += arrival
            else:
                done = running.popleft()
                clock += to_end
        return clock
