"""What a rank's steps tell the arbiter of its link, and what the arbiter counts."""

from dataclasses import replace

import pytest

from splash_core.engine.link_steps import LinkedEngine
from splash_core.engine.progress import StepProgress
from splash_core.engine.running import RunningStep
from splash_core.ids import Epoch, PageId, RankId, SlotId, StepId
from splash_core.layout.layout import Layout
from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.switch.manifest import Chunk, PageMove, Primitive, SwitchManifest
from splash_core.transport.classes import TrafficClass
from splash_core.transport.counters import TrafficCount, TrafficSample
from splash_core.transport.link import BandwidthArbiter
from tests.support.flows import may_go

PLAN = StepPlan(step=StepId(1), epoch=Epoch(1), layout=Layout.TP)
MOVE = PageMove(PageId(1), RankId(0), SlotId(3), RankId(1), SlotId(4))
SWITCH = SwitchManifest(
    layout_from=Layout.DP,
    layout_to=Layout.TP,
    epoch=Epoch(1),
    weights=Primitive.DISCARD,
    kv=Primitive.ALL_GATHER,
    layer_chunks=(Chunk.of([MOVE]),),
)


class LookingEngine:
    """Asks the link for a handoff's turn when a step has begun, and when it ends."""

    def __init__(self, link: BandwidthArbiter) -> None:
        self.progress = StepProgress(1)
        self.flow = link.flow(TrafficClass.HANDOFF)
        self.may_go: list[bool] = []
        self.fails = ""

    def begin(self, plan: StepPlan) -> RunningStep:
        if self.fails == "begin":
            raise RuntimeError("broken")
        return LookingStep(self, plan)

    def look(self) -> None:
        self.flow.want(10)
        self.may_go.append(may_go(self.flow))


class LookingStep:
    """Ends when it is asked to."""

    def __init__(self, engine: LookingEngine, plan: StepPlan) -> None:
        self._engine = engine
        self._plan = plan
        self.passed = False

    def finish(self) -> StepResult:
        self._engine.look()
        if self._engine.fails:
            raise RuntimeError("broken")
        return StepResult(
            step=self._plan.step, rank=RankId(0), switch_bytes_received=100, precopy_bytes_received=20
        )


@pytest.mark.parametrize(
    ("manifest", "held"),
    [
        (None, False),
        (SWITCH, True),
        (replace(SWITCH, layer_chunks=(Chunk.of([MOVE._replace(dst=RankId(0))]),)), False),
        (replace(SWITCH, layout_from=Layout.TP), False),
        (replace(SWITCH, layer_chunks=(), weights=Primitive.ALL_GATHER), True),
    ],
)
def test_a_switch_between_ranks_holds_handoffs(manifest: SwitchManifest | None, held: bool) -> None:
    link = BandwidthArbiter()
    engine = LookingEngine(link)
    step = LinkedEngine(engine, link).begin(replace(PLAN, manifest=manifest))
    engine.look()
    result = step.finish()
    assert engine.may_go == [not held, not held]
    assert result.switch_bytes_received == 100
    assert link.use()[TrafficClass.SWITCH].num_bytes == 100
    assert link.use()[TrafficClass.PRECOPY].num_bytes == 20
    if held:
        assert may_go(engine.flow)


@pytest.mark.parametrize("fails", ["begin", "finish"])
def test_a_step_that_fails_holds_nothing_back_afterwards(fails: str) -> None:
    link = BandwidthArbiter()
    engine = LookingEngine(link)
    engine.fails = fails
    with pytest.raises(RuntimeError, match="broken"):
        LinkedEngine(engine, link).begin(replace(PLAN, manifest=SWITCH)).finish()
    engine.flow.want(10)
    assert may_go(engine.flow)


def test_a_step_behind_a_switch_lets_go_of_nothing_before_the_switch_has_ended() -> None:
    link = BandwidthArbiter()
    looking = LookingEngine(link)
    engine = LinkedEngine(looking, link)
    switch, behind = engine.begin(replace(PLAN, manifest=SWITCH)), engine.begin(PLAN)
    looking.look()
    assert looking.may_go == [False]
    switch.finish()
    assert may_go(looking.flow)
    assert behind.finish().rank == 0


def test_a_link_counts_who_waited_and_for_how_long() -> None:
    now = [10.0]
    link = BandwidthArbiter(clock=lambda: now[0])
    assert link.samples() == ()
    flow = link.flow(TrafficClass.HANDOFF)
    with link.switching():
        flow.want(10)
        assert not may_go(flow)
        now[0] += 0.125
    assert may_go(flow)
    link.charge(TrafficClass.SWITCH, 100)
    assert link.samples() == (
        TrafficSample(TrafficCount.WAITS, "handoff", "", 1),
        TrafficSample(TrafficCount.WAIT_SECONDS, "handoff", "", 0.125),
    )
