"""Simulated switches that copy ahead: slower steps first, then a switching step that pays for the rest."""

from collections import Counter
from dataclasses import replace

import pytest

from splash_core.ids import RankId, SeqId
from splash_core.layout.layout import Layout
from splash_core.policy.config import GroupPolicy, PolicyConfig
from splash_core.policy.decision import Decision
from splash_core.scheduling.roles import Role
from splash_core.simulate.cluster import Cluster, Course, Detail
from splash_core.simulate.comparison import Objectives, Summary, policy_course
from splash_core.simulate.copies import CopiesAhead as Copies
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.ledger import Ledger
from splash_core.simulate.pilots import Policy
from splash_core.simulate.workload import Workload
from splash_core.switch.manifest import SwitchMode
from tests.support.simulated import (
    CopiesAhead,
    assert_same_course,
    batch_of,
    copying_course,
    made,
    policies,
    simulated,
    small_fleet,
)

TWO_AND_TWO = {Role.PREFILL: 2, Role.DECODE: 2}
COMBINED = {Role.COMBINED: 2}
EAGER = policies("[all]\ndwell_s = 0.5\ninterval_s = 0.3\nmargin = 0.0\nconfirm = 1")
TO_CP = policies(
    '[all]\nenabled = false\n[[decode.calendar]]\nfrom = "22:00"\nto = "23:00"\npin = "CP"',
    start_s=1795816785.0,
)
"""Decode groups are pinned to CP 15 seconds after the start."""
LONG = Workload(name="long", requests=tuple(batch_of(8, prompt=305, output=400)))


@pytest.mark.parametrize("groups", [TWO_AND_TWO, COMBINED], ids=["disaggregated", "combined"])
@pytest.mark.parametrize("rate", [1 << 17, 1 << 21, 1 << 23])
def test_copies_ahead_are_the_same_in_all_details(rate: int, groups: dict[Role, int]) -> None:
    fleet = small_fleet(pages=700, groups=groups, precopy_bytes_per_step=rate)
    workload = made("ramp", 60, rate=3.0, lengths=0.1, seed=5)
    course = copying_course(fleet, EAGER)
    fast = simulated(fleet, workload, course=course)
    assert sum(switch.ahead_steps for switch in fast.switches) > 70
    assert {switch.mode for switch in fast.switches} == {SwitchMode.PRECOPIED}
    for detail in (Detail.STEPS, Detail.PAGES):
        assert_same_course(fast, simulated(fleet, workload, course=course, detail=detail))


def switched_to_cp(fleet: Fleet, course: Course, workload: Workload = LONG) -> Ledger:
    ledger = simulated(fleet, workload, course=course)
    assert {(switch.layout_from, switch.layout_to) for switch in ledger.switches} == {(Layout.DP, Layout.CP)}
    return ledger


def test_ordinary_steps_pay_for_copies_and_the_switching_step_for_the_rest() -> None:
    fleet = small_fleet(precopy_bytes_per_step=1 << 20, records_steps=True)
    (overlapped,) = switched_to_cp(fleet, policy_course(fleet, TO_CP)).switches
    (precopied,) = switched_to_cp(fleet, copying_course(fleet, TO_CP)).switches
    assert overlapped.mode is SwitchMode.OVERLAPPED
    assert (overlapped.ahead_steps, overlapped.ahead_s) == (0, 0.0)
    assert precopied.mode is SwitchMode.PRECOPIED
    assert 0 < precopied.exposed_s < overlapped.exposed_s
    # One page, a little less than 1 MiB, in each step; interference makes each as much longer as it copies.
    profile, arena = fleet.model.profile, fleet.arena
    assert arena is not None
    copying = profile.collective_latency_s + arena.slot_bytes / profile.link_bps
    assert precopied.ahead_steps > 20
    assert precopied.ahead_s == pytest.approx(precopied.ahead_steps * copying * profile.interference, rel=0.1)
    assert precopied.time_s > overlapped.time_s


def test_a_higher_rate_takes_fewer_steps() -> None:
    steps = []
    for rate in (1 << 20, 1 << 22, 1 << 28):
        fleet = small_fleet(precopy_bytes_per_step=rate)
        steps.append(switched_to_cp(fleet, copying_course(fleet, TO_CP)).switches[0].ahead_steps)
    assert steps[0] > steps[1] > steps[2] > 0


def test_without_room_for_second_copies_it_is_overlapped() -> None:
    fleet = small_fleet(pages=100)
    # Each owner's pool holds one history of more than 75 pages, and not half of the other's as well.
    two = Workload(name="two", requests=tuple(batch_of(2, prompt=1200, output=300)))
    (switch,) = switched_to_cp(fleet, copying_course(fleet, TO_CP), two).switches
    assert (switch.mode, switch.ahead_steps) == (SwitchMode.OVERLAPPED, 0)
    assert switch.exposed_s > 0


@pytest.mark.parametrize("detail", Detail)
def test_a_pin_to_the_present_layout_calls_copies_off(detail: Detail) -> None:
    fleet = small_fleet(precopy_bytes_per_step=1)  # a page a step: two seconds are too few for all
    config = PolicyConfig(interval_s=0.5)

    def said(now: float) -> GroupPolicy:
        return GroupPolicy(enabled=False, config=config, pin=Layout.CP if 15 <= now < 17 else Layout.DP)

    off = policies("[all]\nenabled = false")
    course = replace(copying_course(fleet, off), pilot=lambda _role, _name: CopiesAhead(fleet.model, said))
    course = replace(course, start=dict.fromkeys(Role, Layout.DP))
    cluster = Cluster(fleet, course, detail=detail)
    ledger = cluster.run(LONG)
    (pilot,) = (station.pilot for station in cluster.stations[Role.DECODE])
    assert isinstance(pilot, CopiesAhead)
    assert [decision.layout_to for decision in pilot.decisions] == [Layout.CP]
    assert [switch for switch in ledger.switches if switch.group == "decode-0"] == []
    assert len(ledger.finished) == 8


def quiet_slow_link(fleet: Fleet) -> Fleet:
    """Transfers that hide slow nothing down, and take longer than a layer."""
    profile = replace(fleet.model.profile, interference=0.0, link_bps=2e7)
    return replace(fleet, model=replace(fleet.model, profile=profile))


@pytest.mark.parametrize("detail", Detail)
def test_a_policy_that_chooses_copies_ahead_gets_them(detail: Detail) -> None:
    fleet = quiet_slow_link(small_fleet(pages=3000, precopy_bytes_per_step=1 << 20, records_steps=True))
    cluster = Cluster(fleet, policy_course(fleet, EAGER), detail=detail)
    ledger = cluster.run(made("ramp", 60, rate=2.0, lengths=0.2))
    decided = decisions(cluster)
    chosen = Counter(decision.executor.mode for decision in decided if decision.switches)
    assert chosen[SwitchMode.PRECOPIED] > 0
    assert chosen == Counter(switch.mode for switch in ledger.switches)
    figures = Summary(ledger=ledger, objectives=Objectives()).to_json()
    assert figures["switches_by_executor"] == {mode.value: count for mode, count in chosen.items()}
    assert figures["ahead_s"] == pytest.approx(sum(switch.ahead_s for switch in ledger.switches), abs=1e-6)


def decisions(cluster: Cluster) -> list[Decision]:
    stations = [station for stations in cluster.stations.values() for station in stations]
    return [d for s in stations if isinstance(s.pilot, Policy) for d in s.pilot.decisions]


def test_copies_stand_or_go_with_their_row() -> None:
    copies = Copies(3)
    first, second = SeqId(1), SeqId(2)
    copies.add(first, 0, [RankId(1), RankId(2)])
    copies.add(first, 1, [RankId(1)])
    copies.add(second, 0, [RankId(1)])
    copies.add(second, 1, [])
    assert copies.on_rank == [0, 3, 1]
    assert not copies.give_back(RankId(0))
    assert copies.give_back(RankId(2))  # the first page of the first sequence, and so its copy on rank 1
    assert copies.on_rank == [0, 2, 0]
    copies.drop(first)
    assert copies.on_rank == [0, 1, 0]
    assert copies.take() == {second: [0, 1, 0]}
    assert copies.on_rank == [0, 0, 0]
    assert not copies.stand
