"""What a policy document says of simulated groups holds there as in groups that serve."""

from splash_core.policy.config import PolicyConfig, PolicySet
from splash_core.policy.decision import Executor
from splash_core.scheduling.roles import Role
from splash_core.simulate.cluster import Cluster, Detail
from splash_core.simulate.comparison import policy_course
from splash_core.simulate.pilots import Policy
from splash_core.simulate.workload import Workload
from tests.support.simulated import batch_of, small_fleet


def test_no_switch_is_decided_at_the_price_of_copies_ahead() -> None:
    # Overlapped switches break this bound, so a group that copies ahead would do that.
    tight = PolicyConfig(dwell_s=2.0, interval_s=0.5, itl_bound_ms=110.0)
    work = Workload(name="one", requests=tuple(batch_of(8, prompt=300, output=200)))
    for detail in (Detail.FAST, Detail.PAGES):
        fleet = small_fleet()
        cluster = Cluster(fleet, policy_course(fleet, PolicySet(prefill=tight, decode=tight)), detail=detail)
        ledger = cluster.run(work)
        decided = []
        for station in (*cluster.stations[Role.PREFILL], *cluster.stations[Role.DECODE]):
            assert isinstance(station.pilot, Policy)
            decided += [decision for decision in station.pilot.decisions if decision.switches]
        assert len(decided) == len(ledger.switches) > 0
        for decision in decided:
            assert decision.executor is Executor.OVERLAPPED
            offered = decision.to_json()["inputs"]["executors"]
            assert offered["precopied"] == {"refused": "this group does not copy ahead"}
