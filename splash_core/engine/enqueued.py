"""A step of the real engine, asked of the device."""

from dataclasses import dataclass

from typing_extensions import override

from splash_core.engine.lanes import SwitchTimes
from splash_core.engine.output import StepOutput
from splash_core.engine.running import RunningStep
from splash_core.engine.spans import Span
from splash_core.engine.switching import SwitchExecution
from splash_core.ids import RankId
from splash_core.scheduling.step import StepPlan, StepResult, StepTimes


@dataclass(slots=True, kw_only=True)
class EnqueuedStep(RunningStep):
    """See the module."""

    plan: StepPlan
    rank: RankId
    span: Span
    output: StepOutput
    switch: SwitchExecution | None
    switch_bytes: int
    """Received from other ranks by the manifest's moves."""
    precopy_bytes: int
    """Received from other ranks by what is copied ahead."""
    switch_times: SwitchTimes = SwitchTimes()
    """From `finish` on."""

    @property
    @override
    def passed(self) -> bool:
        return self.span.passed

    @override
    def finish(self) -> StepResult:
        total_s = self.span.seconds()
        if self.switch is not None:
            self.switch_times = self.switch.times()
        return StepResult(
            step=self.plan.step,
            rank=self.rank,
            tokens=self.output.tokens(),
            prompt_logprobs=self.output.prompt_logprobs(),
            switch_bytes_received=self.switch_bytes,
            precopy_bytes_received=self.precopy_bytes,
            times=StepTimes(total_s=total_s, switch_wait_s=self.switch_times.wait_s),
        )
