"""A rank's loop: it begins with a step behind the one that the device computes, and reports in order."""

from collections import deque
from collections.abc import Callable
from typing import cast

from splash_core.engine.progress import StepProgress
from splash_core.engine.rank_process import run_steps
from splash_core.engine.running import RunningStep
from splash_core.ids import Epoch, RankId, StepId
from splash_core.layout.layout import Layout
from splash_core.obs.vitals import VitalThreads
from splash_core.pb import rank_pb2
from splash_core.rpc.codec import plan_to_pb
from splash_core.rpc.link import RankLink
from splash_core.scheduling.step import StepPlan, StepResult


class Device:
    """Computes one step after the other, and notes what the rank did in which order."""

    def __init__(self) -> None:
        self.progress = StepProgress(1)
        self.log: list[str] = []
        self.computed = 0
        self.progress = StepProgress(1)

    def begin(self, plan: StepPlan) -> RunningStep:
        self.log.append(f"begin {plan.step}")
        return Step(self, plan)


class Step(RunningStep):
    def __init__(self, device: Device, plan: StepPlan) -> None:
        self._device, self._plan = device, plan

    @property
    def passed(self) -> bool:
        return self._device.computed >= self._plan.step

    def finish(self) -> StepResult:
        if not self.passed:
            self._device.log.append(f"wait for {self._plan.step}")
            self._device.computed = int(self._plan.step)
        return StepResult(step=self._plan.step, rank=RankId(0))


class Wire:
    """What the leader says, and when: each entry is a message, or something that happens meanwhile."""

    def __init__(self, device: Device, script: list[int | Callable[[], None] | None]) -> None:
        self._device = device
        self._script = deque(script)

    def receive(self, timeout_s: float) -> rank_pb2.ToRank | None:
        del timeout_s
        if not self._script:
            return rank_pb2.ToRank(stop=True)
        entry = self._script.popleft()
        if entry is None or callable(entry):
            if entry is not None:
                entry()
            return None
        plan = StepPlan(step=StepId(entry), epoch=Epoch(0), layout=Layout.TP)
        return rank_pb2.ToRank(step=plan_to_pb(plan))

    def send(self, message: rank_pb2.FromRank) -> None:
        self._device.log.append(f"report {message.step.step}")


def play(script: list[int | Callable[[], None] | None], device: Device) -> list[str]:
    run_steps(cast("RankLink", Wire(device, script)), device, VitalThreads(), num_ranks=1)
    return device.log


def test_a_second_step_is_begun_before_the_first_is_reported() -> None:
    device = Device()
    assert play([1, 2, 3], device)[:6] == [
        "begin 1",
        "begin 2",
        "wait for 1",
        "report 1",
        "begin 3",
        "wait for 2",
    ]


def test_a_step_that_has_ended_is_reported_though_no_message_comes() -> None:
    device = Device()

    def compute() -> None:
        device.computed += 1

    assert play([1, None, compute, None, 2, compute, None], device) == [
        "begin 1",
        "report 1",
        "begin 2",
        "report 2",
    ]


def test_a_device_that_is_done_at_once_reports_before_it_looks_for_more() -> None:
    device = Device()
    device.computed = 9
    assert play([1, 2], device) == ["begin 1", "report 1", "begin 2", "report 2"]
