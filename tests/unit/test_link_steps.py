"""What a rank's steps tell the arbiter of its link, and what the rank tells its leader of it."""

from dataclasses import replace

import pytest

from splash_core.engine.link_reports import LinkReports
from splash_core.engine.link_steps import LinkedEngine
from splash_core.ids import Epoch, PageId, RankId, SlotId, StepId
from splash_core.layout.layout import Layout
from splash_core.leader.control import link_use
from splash_core.scheduling.step import StepPlan, StepResult
from splash_core.switch.manifest import PageMove, Primitive, SwitchManifest
from splash_core.transport.arbiter import LinkLimits
from splash_core.transport.link import BandwidthArbiter, RankLinks
from splash_core.transport.traffic import TrafficClass

PLAN = StepPlan(step=StepId(1), epoch=Epoch(1), layout=Layout.TP)
MOVE = PageMove(PageId(1), RankId(0), SlotId(3), RankId(1), SlotId(4))
SWITCH = SwitchManifest(
    layout_from=Layout.DP,
    layout_to=Layout.TP,
    epoch=Epoch(1),
    weights=Primitive.DISCARD,
    kv=Primitive.ALL_GATHER,
    layer_chunks=((MOVE,),),
)


class LookingEngine:
    """Asks the link for a handoff's turn while a step runs."""

    def __init__(self, link: BandwidthArbiter) -> None:
        self.flow = link.flow(TrafficClass.HANDOFF)
        self.may_go: list[bool] = []
        self.fails = False

    def step(self, plan: StepPlan) -> StepResult:
        self.flow.want(10)
        self.may_go.append(self.flow.may_go())
        if self.fails:
            raise RuntimeError("broken")
        return StepResult(
            step=plan.step, rank=RankId(0), switch_bytes_received=100, precopy_bytes_received=20
        )


@pytest.mark.parametrize(
    ("manifest", "held"),
    [
        (None, False),
        (SWITCH, True),
        (replace(SWITCH, layer_chunks=((replace(MOVE, dst=RankId(0)),),)), False),
        (replace(SWITCH, layout_from=Layout.TP), False),
        (replace(SWITCH, layer_chunks=(), weights=Primitive.ALL_GATHER), True),
    ],
)
def test_a_switch_between_ranks_holds_handoffs(manifest: SwitchManifest | None, held: bool) -> None:
    link = BandwidthArbiter()
    engine = LookingEngine(link)
    result = LinkedEngine(engine, link).step(replace(PLAN, manifest=manifest))
    assert engine.may_go == [not held]
    assert result.switch_bytes_received == 100
    assert link.use()[TrafficClass.SWITCH].num_bytes == 100
    assert link.use()[TrafficClass.PRECOPY].num_bytes == 20
    if held:
        assert engine.flow.may_go()


def test_a_step_that_fails_holds_nothing_back_afterwards() -> None:
    link = BandwidthArbiter()
    engine = LookingEngine(link)
    engine.fails = True
    with pytest.raises(RuntimeError, match="broken"):
        LinkedEngine(engine, link).step(replace(PLAN, manifest=SWITCH))
    assert engine.flow.may_go()


def test_a_rank_reports_its_links_when_they_have_carried_something() -> None:
    links = RankLinks.of("cuda", LinkLimits())
    reports = LinkReports(links)
    assert reports.due(1.0) is None
    links.group.charge(TrafficClass.SWITCH, 7)
    links.phase.charge(TrafficClass.HANDOFF, 5)
    assert reports.due(1.1) is None
    report = reports.due(2.0)
    assert report is not None
    assert [(entry.traffic, entry.bytes) for entry in report.use] == [
        ("switch", 7),
        ("handoff", 5),
        ("precopy", 0),
    ]
    assert reports.due(3.0) is None
    total = link_use([report, report])
    assert [(entry.traffic, entry.bytes) for entry in total] == [
        ("switch", 14),
        ("handoff", 10),
        ("precopy", 0),
    ]
