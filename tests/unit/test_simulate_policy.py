"""What a policy document says of simulated groups holds there as in groups that serve."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.policy.config import GroupPolicy, PolicyConfig
from splash_core.policy.decision import Cause, Decision
from splash_core.policy.outlook import Outlook, outlooks
from splash_core.policy.snapshot import Phase
from splash_core.scheduling.roles import Role
from splash_core.simulate import pilots
from splash_core.simulate.cluster import Cluster
from splash_core.simulate.comparison import oracle_course, policy_course
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.ledger import Ledger
from splash_core.simulate.pilots import Policy
from splash_core.simulate.policies import Policies
from splash_core.simulate.workload import Workload
from tests.support.policy_cases import cost_model, prompts, snapshot
from tests.support.simulated import batch_of, made, policies, simulated, small_fleet

EAGER = "[all]\ndwell_s = 1.0\ninterval_s = 0.5\nmargin = 0.0\nconfirm = 1\n"
PAIRS = {Role.PREFILL: 1, Role.DECODE: 2}
FRIDAY_22H = datetime(2026, 11, 27, 22, tzinfo=UTC).timestamp()


def switches(ledger: Ledger) -> set[tuple[str, Layout]]:
    return {(switch.group, switch.layout_to) for switch in ledger.switches}


def ran(fleet: Fleet, said: Policies) -> tuple[Ledger, list[Decision]]:
    cluster = Cluster(fleet, policy_course(fleet, said))
    ledger = cluster.run(Workload(name="one", requests=tuple(batch_of(8, prompt=300, output=200))))
    stations = [station for stations in cluster.stations.values() for station in stations]
    steering = [station.pilot for station in stations if isinstance(station.pilot, Policy)]
    return ledger, [decision for pilot in steering for decision in pilot.decisions]


def test_a_pin_holds_a_group_and_a_group_of_its_own_name_only() -> None:
    fleet = small_fleet(groups=PAIRS)
    pinned = policies('[all]\nenabled = false\n[group.decode-1]\npin = "CP"')
    ledger = simulated(fleet, made("poisson", 40), course=policy_course(fleet, pinned))
    assert switches(ledger) == {("decode-1", Layout.CP)}
    _, decisions = ran(fleet, pinned)
    assert [(d.cause, d.group) for d in decisions] == [(Cause.PINNED, "decode-1")]


def test_one_phase_may_be_off() -> None:
    fleet = small_fleet()
    work = made("ramp", 60, rate=2.0)
    both = simulated(fleet, work, course=policy_course(fleet, policies(EAGER)))
    assert {switch.group for switch in both.switches} == {"prefill-0", "decode-0"}
    for phase, other in (("prefill", "decode-0"), ("decode", "prefill-0")):
        said = policies(f"{EAGER}[{phase}]\nenabled = false")
        ledger = simulated(fleet, work, course=policy_course(fleet, said))
        assert {switch.group for switch in ledger.switches} == {other}


CALENDAR = """[all]
enabled = false
interval_s = 0.5
[[decode.calendar]]
from = "22:00"
to = "23:00"
pin = "CP"
"""


def test_a_calendar_holds_from_a_stated_start() -> None:
    fleet = small_fleet()
    for before_s, seen in ((-1800.0, set()), (-3.0, {("decode-0", Layout.CP)})):
        ledger, _ = ran(fleet, policies(CALENDAR, start_s=FRIDAY_22H + before_s))
        assert switches(ledger) == seen
        assert all(switch.time_s >= -before_s for switch in ledger.switches)


def test_a_calendar_without_a_start_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="a calendar for decode-0; say with --start"):
        ran(small_fleet(), policies(CALENDAR))


def test_a_pin_that_a_group_does_not_offer_is_refused_by_name() -> None:
    fleet = small_fleet()
    few = small_fleet(capacities={layout: fleet.capacities[layout] for layout in (Layout.TP, Layout.DP)})
    with pytest.raises(ConfigError, match="pin: decode-0 does not offer CP; it offers TP, DP"):
        ran(few, policies('[decode]\npin = "CP"'))


def test_what_no_simulated_group_heeds_is_said() -> None:
    fleet = small_fleet(groups=PAIRS)
    few = replace(fleet, capacities={layout: fleet.capacities[layout] for layout in (Layout.TP, Layout.DP)})
    said = policies(
        '[decode]\nallowed = ["DP", "CP"]\n[group.decode-1]\nmargin = 0.1\n[group.decode-2]\nshadow = true\n'
        '[canary]\ngroup = "decode-9"\n[canary.try]\nmargin = 0.2'
    )
    strangers = [
        f"{where}: no simulated group is called {name!r}; there are prefill-0, decode-0, decode-1"
        for where, name in (("group.decode-2", "decode-2"), ("canary.group", "decode-9"))
    ]
    canary = "canary: it is not tried here"
    odd = [f"allowed: CP without effect for decode-{index}, which cannot run it" for index in (0, 1)]
    assert said.warnings(fleet) == (*strangers, canary)
    assert said.warnings(few) == (*strangers, canary, *odd)
    combined = small_fleet(groups={Role.COMBINED: 1})
    (warning,) = policies("[prefill]\nshadow = true").warnings(combined)
    assert warning.startswith("prefill: no simulated group follows it")
    assert policies(EAGER).warnings(combined) == ()


def test_the_oracle_compares_under_both_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def noted(*args: Any, **bounds: Any) -> Mapping[Layout, Outlook]:
        asked.append(bounds)
        return outlooks(*args, **bounds)

    monkeypatch.setattr(pilots, "outlooks", noted)
    fleet = small_fleet()
    said = policies("[all]\nhorizon_steps = 64\n[prefill]\nttft_bound_ms = 600\n[decode]\nitl_bound_ms = 90")
    simulated(fleet, made("poisson", 5), course=oracle_course(fleet, said))
    assert {tuple(bounds.items()) for bounds in asked} == {
        (("itl_bound_s", None), ("ttft_bound_s", 0.6), ("horizon_steps", 64)),
        (("itl_bound_s", 0.09), ("ttft_bound_s", None), ("horizon_steps", 64)),
    }


def test_chunks_are_limited_by_a_policy_that_acts_and_no_longer_than_it_holds() -> None:
    model = cost_model()
    seen = snapshot(prompts(2, 256), phase=Phase.PREFILL)
    step_s = outlooks(seen, model)[seen.layout].prediction.step_s
    tight = PolicyConfig(interval_s=1.0, ttft_bound_ms=2e3 * step_s)
    acts, shadow = GroupPolicy(config=tight), GroupPolicy(config=replace(tight, shadow=True))
    off = GroupPolicy(enabled=False, config=tight)
    pilot = Policy(model, lambda now: (acts, shadow, acts, off)[int(now)])
    limits: list[list[int | None]] = []
    for now in range(4):
        limits.append([])
        pilot.at_boundary(float(now), lambda: seen, lambda _layout, _mode: "", limits[-1].append)
    (first, *more) = limits[0]
    assert more == []
    assert first is not None
    assert first < seen.chunk_tokens
    assert limits[1:] == [[None], [None, first], [None]]
