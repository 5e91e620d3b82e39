"""How long steps take: what a switch exposed, and what the policy compares its prediction with.

Invariant: a switching step never enters the history, so a switch is always measured against plain steps.
"""

from collections import OrderedDict, deque
from statistics import median

from splash_core.ids import SeqId
from splash_core.policy.step_totals import StepTotals
from splash_core.scheduling.step import StepPlan
from splash_core.spec.request import Purpose

_WINDOW = 8
_SHAPES = 64

Shape = tuple[int, int]
"""(sequences, rows) of a step."""


class StepPace:
    """Recent step times by batch shape, in seconds."""

    def __init__(self) -> None:
        self._by_shape: OrderedDict[Shape, deque[float]] = OrderedDict()
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self.totals = StepTotals()
        """Of what users get, in steps with a manifest too: probes are left out."""
        self._probes: set[SeqId] = set()
        """Those that ranks have."""

    @staticmethod
    def shape(plan: StepPlan) -> Shape:
        """The batch shape of a step."""
        return len(plan.sequences), plan.num_rows

    def record(self, plan: StepPlan, step_s: float) -> None:
        """Enter a step's time on its slowest rank; steps with a manifest count in the totals only."""
        self._count(plan, step_s)
        if plan.manifest is not None:
            return
        self._recent.append(step_s)
        shape = self.shape(plan)
        self._by_shape.setdefault(shape, deque(maxlen=_WINDOW)).append(step_s)
        self._by_shape.move_to_end(shape)
        if len(self._by_shape) > _SHAPES:
            self._by_shape.popitem(last=False)

    def _count(self, plan: StepPlan, step_s: float) -> None:
        """Add a step to the totals, unless it ran for probes alone."""
        self._probes.difference_update(plan.finished)
        self._probes.update(new.seq for new in plan.started if new.sampling.purpose is Purpose.PROBE)
        users = [rows.count for rows in plan.sequences if rows.seq not in self._probes]
        if users or not plan.sequences:
            self.totals = self.totals.with_step(rows=sum(users), sequences=len(users), step_s=step_s)

    def first_token(self, ttft_s: float) -> None:
        """Enter the time of a user's prompt from its arrival to its first token."""
        self.totals = self.totals.with_prompt(ttft_s=ttft_s)

    def forget(self) -> None:
        """After a switch: times of the layout before say nothing about this one."""
        self._recent.clear()

    def exposed_s(self, plan: StepPlan, step_s: float) -> float:
        """How much longer a switching step took than the median of recent steps of its shape, at least 0.

        Args:
            plan: of the step.
            step_s: since the step before had ended: ordinary steps are sent before, a switch waits for it.
        """
        usual = self._by_shape.get(self.shape(plan))
        return max(0.0, step_s - (median(usual) if usual else 0.0))

    @property
    def recent_s(self) -> float | None:
        """Median time of recent steps in the present layout; None before the first."""
        return median(self._recent) if self._recent else None
