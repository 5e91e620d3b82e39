"""Simulated runs: fast-forward, step by step and page by page decide alike; budgets hold; nothing is lost."""

from itertools import pairwise

import pytest

from splash_core.dispatch.admission import QueueLimits
from splash_core.errors import ConfigError
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.scheduling.roles import Role
from splash_core.simulate.cluster import Cluster, Detail
from splash_core.simulate.comparison import compare, fixed_course, policy_course
from splash_core.simulate.generators import GENERATORS
from splash_core.simulate.ledger import Ledger, percentile
from splash_core.simulate.pilots import Policy
from splash_core.simulate.timeline import in_system, layout_shares
from splash_core.simulate.workload import Workload
from tests.support.simulated import (
    QUICK,
    SPARSE,
    assert_same_course,
    batch_of,
    made,
    policies,
    simulated,
    small_fleet,
)

TWO_AND_TWO = {Role.PREFILL: 2, Role.DECODE: 2}
COMBINED = {Role.COMBINED: 2}


def test_three_details_decide_alike_on_a_thousand_requests() -> None:
    fleet = small_fleet(pages=400, groups=TWO_AND_TWO)
    workload = made("long-short", 1000, rate=10.0, lengths=0.03)
    fast = simulated(fleet, workload)
    assert len(fast.finished) == 1000
    assert len(fast.switches) >= 10
    assert_same_course(fast, simulated(fleet, workload, detail=Detail.STEPS))
    assert_same_course(fast, simulated(fleet, workload, detail=Detail.PAGES))


@pytest.mark.parametrize("groups", [TWO_AND_TWO, COMBINED], ids=["disaggregated", "combined"])
@pytest.mark.parametrize("name", GENERATORS)
def test_every_workload_is_the_same_in_all_details(name: str, groups: dict[Role, int]) -> None:
    fleet = small_fleet(pages=500, groups=groups)
    workload = made(name, 60, rate=3.0, lengths=0.05)
    fast = simulated(fleet, workload)
    assert_same_course(fast, simulated(fleet, workload, detail=Detail.STEPS))
    assert_same_course(fast, simulated(fleet, workload, detail=Detail.PAGES))


@pytest.mark.parametrize("lengths", [0.05, 0.15])
def test_sparse_attention_is_the_same_in_all_details(lengths: float) -> None:
    fleet = small_fleet(pages=700, groups=TWO_AND_TWO, model=SPARSE)
    workload = made("poisson", 60, rate=3.0, lengths=lengths)
    fast = simulated(fleet, workload)
    assert_same_course(fast, simulated(fleet, workload, detail=Detail.STEPS))
    assert_same_course(fast, simulated(fleet, workload, detail=Detail.PAGES))


def test_a_row_that_sees_just_what_sparse_attention_chooses_grows_no_further() -> None:
    (top_k,) = {SPARSE.top_k}
    assert top_k is not None
    fleet = small_fleet(model=SPARSE)
    # The first decode row has as many keys as are chosen, one fewer, one more.
    for prompt in (top_k - 2, top_k - 1, top_k):
        work = Workload(name="edge", requests=tuple(batch_of(4, prompt=prompt, output=400)))
        for layout in STANDARD_LAYOUTS:
            course = fixed_course(layout)
            fast, steps = (
                simulated(fleet, work, course=course, detail=d) for d in (Detail.FAST, Detail.STEPS)
            )
            assert_same_course(fast, steps)


@pytest.mark.parametrize("layout", STANDARD_LAYOUTS)
def test_pools_that_are_too_small_make_requests_wait_alike(layout: Layout) -> None:
    fleet = small_fleet(pages=60, groups=TWO_AND_TWO, kv_overcommit=4.0)
    workload = made("poisson", 80, rate=8.0, lengths=0.05)
    fast = simulated(fleet, workload, course=fixed_course(layout))
    assert fast.switches == []
    assert_same_course(fast, simulated(fleet, workload, course=fixed_course(layout), detail=Detail.STEPS))


def test_a_run_is_the_same_again() -> None:
    fleet = small_fleet(groups=TWO_AND_TWO)
    assert simulated(fleet, made("agent", 80)) == simulated(fleet, made("agent", 80))


def oscillating(rounds: int, every_s: float) -> Workload:
    """Many short requests and few long ones in turn, faster than any dwell."""
    requests = []
    for turn in range(rounds):
        shape = {"prompt": 40, "output": 10} if turn % 2 else {"prompt": 1200, "output": 12}
        count = 12 if turn % 2 else 1
        requests += batch_of(count, at=turn * every_s, first_key=len(requests), **shape)
    return Workload(name="oscillating", requests=tuple(requests))


def test_an_oscillating_load_switches_once_a_dwell_within_the_budget() -> None:
    budget_ms, dwell_s = 150.0, 6.0
    eager = policies(
        f"[all]\ndwell_s = {dwell_s}\ninterval_s = 0.5\nmargin = 0.0\nconfirm = 1\n"
        f"exposed_ms_per_minute = {budget_ms}"
    )
    fleet = small_fleet()
    cluster = Cluster(fleet, policy_course(fleet, eager))
    ledger = cluster.run(oscillating(60, 1.5))
    assert len(ledger.switches) > 16
    minutes = max(times.finished_s for times in ledger.finished) / 60
    for station in (*cluster.stations[Role.PREFILL], *cluster.stations[Role.DECODE]):
        mine = [switch for switch in ledger.switches if switch.group == station.name]
        assert all(later.time_s - sooner.time_s >= dwell_s for sooner, later in pairwise(mine))
        assert sum(switch.exposed_s for switch in mine) * 1e3 <= budget_ms * minutes
        assert isinstance(station.pilot, Policy)
        promised = [
            (decision.time_s, decision.cost_ms - decision.inputs["contention_ms"])
            for decision in station.pilot.decisions
        ]
        for now, _ in promised:
            assert sum(ms for when, ms in promised if now - 60.0 < when <= now) <= budget_ms + 1e-6


def test_a_switch_takes_the_time_that_it_is_said_to_expose() -> None:
    fleet = small_fleet()
    work = Workload(name="one", requests=tuple(batch_of(8, prompt=300, output=200)))
    moved = simulated(fleet, work)
    assert moved.switches
    assert all(switch.exposed_s > 0 for switch in moved.switches)


def test_what_does_not_fit_or_would_wait_too_long_is_refused_and_counted() -> None:
    requests = [*batch_of(1, prompt=9000, output=10), *batch_of(9, prompt=200, output=5, first_key=1)]
    fleet = small_fleet(queue=QueueLimits(requests=4, prompt_tokens=10_000))
    ledger = simulated(fleet, Workload(name="many", requests=tuple(requests)))
    assert ledger.refused == {"longer than a group can hold": 1, "too many wait": 5}
    assert sorted(times.key for times in ledger.finished) == [1, 2, 3, 4]


def test_the_next_turn_comes_after_the_answer() -> None:
    workload = made("agent", 60)
    ended = {times.key: times for times in simulated(small_fleet(), workload).finished}
    for request in workload.requests:
        if request.follows is not None:
            began = ended[request.follows].finished_s + request.arrival_s
            assert ended[request.key].arrived_s == pytest.approx(began)


def test_a_slower_link_delays_first_tokens_only_between_groups() -> None:
    workload = made("poisson", 30, rate=0.5)
    times = [
        percentile([entry.ttft_s for entry in simulated(fleet, workload).finished], 0.5)
        for fleet in (small_fleet(), small_fleet(handoff_bps=1e6))
    ]
    assert times[1] > times[0] + 1.0
    fleets = [small_fleet(groups=COMBINED), small_fleet(groups=COMBINED, handoff_bps=1e6)]
    assert simulated(fleets[0], workload) == simulated(fleets[1], workload)


def test_regret_is_against_the_best_run_of_all() -> None:
    fleet = small_fleet()
    seen: list[str] = []
    found = compare(fleet, made("ramp", 60, rate=2.0), QUICK, progress=seen.append)
    assert seen == ["policy", "TP", "CP", "DP", "DOP", "oracle"]
    runs = [found.policy, *found.fixed.values()]
    assert all(found.oracle.makespan_s <= run.makespan_s for run in runs)
    assert found.regret == pytest.approx(found.policy.makespan_s / found.oracle.makespan_s - 1)
    assert found.regret >= 0
    assert found.oracle.ledger.finished


def test_off_stays_where_services_start() -> None:
    fleet = small_fleet(groups=TWO_AND_TWO)
    course = policy_course(fleet, policies("[all]\nenabled = false"))
    ledger = simulated(fleet, made("ramp", 40), course=course)
    assert ledger.switches == []
    assert set(ledger.steps) == {Layout.TP, Layout.DP}


def test_gaps_and_percentiles() -> None:
    ledger = Ledger()
    ledger.gap(0.010, 98)
    ledger.gap(0.500, 2)
    assert ledger.gap_percentile(0.5) == pytest.approx(0.010, rel=0.005)
    assert ledger.gap_percentile(0.99) == pytest.approx(0.500, rel=0.005)
    assert Ledger().gap_percentile(0.5) == 0.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([], 0.5) == 0.0


def test_a_timeline_adds_up() -> None:
    fleet = small_fleet(groups=TWO_AND_TWO)
    ledger = simulated(fleet, made("ramp", 60, rate=2.0))
    times, counts = in_system(ledger)
    assert times == sorted(times)
    assert counts[-1] == 0
    assert min(counts) >= 0
    when, shares = layout_shares(ledger, "decode", times[-1])
    assert when == sorted(when)
    assert all(sum(row) == 2 for row in zip(*shares.values(), strict=True))


def test_groups_are_paired_or_combined() -> None:
    with pytest.raises(ConfigError, match="prefill and decode groups, or combined ones only"):
        small_fleet(groups={Role.PREFILL: 1, Role.COMBINED: 1})
