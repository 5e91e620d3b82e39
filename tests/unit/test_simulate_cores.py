"""Groups on one host's cores: each is slower while the other computes, and no work is lost."""

import pytest

from splash_core.layout.layout import Layout
from splash_core.simulate.cluster import Detail
from splash_core.simulate.comparison import fixed_course
from splash_core.simulate.cores import CoreClock, Cores
from splash_core.simulate.ledger import Ledger
from splash_core.simulate.workload import Workload
from tests.support.simulated import assert_same_course, batch_of, made, simulated, small_fleet


def makespan_s(ledger: Ledger) -> float:
    return max(times.finished_s for times in ledger.finished)


class TestClock:
    def test_two_groups_of_two_ranks_on_two_cores_are_half_as_fast_while_both_compute(self) -> None:
        cores, told = Cores(2, ranks=2), list[str]()
        one = CoreClock(cores, lambda: told.append("one"))
        other = CoreClock(cores, lambda: told.append("other"))
        one.begin(10.0)
        assert (one.work(12.0), one.when(14.0)) == (12.0, 14.0)
        other.begin(12.0)
        assert told == ["one", "other"]
        assert one.when(14.0) == pytest.approx(16.0)
        assert one.work(14.0) == pytest.approx(13.0)
        assert other.when(13.0) == pytest.approx(14.0)
        other.end(14.0)
        assert one.when(14.0) == pytest.approx(15.0)

    @pytest.mark.parametrize("count", [None, 4, 64])
    def test_with_a_core_for_each_rank_work_is_time_exactly(self, count: int | None) -> None:
        cores = Cores(count, ranks=2)
        clocks = [CoreClock(cores, lambda: pytest.fail("nothing changes")) for _ in range(2)]
        for clock in clocks:
            clock.begin(0.1)
        assert all(clock.work(0.3) == 0.3 and clock.when(0.7) == 0.7 for clock in clocks)


class TestRuns:
    def test_enough_cores_change_nothing(self) -> None:
        workload = made("poisson", 40)
        alone = simulated(small_fleet(), workload)
        assert_same_course(simulated(small_fleet(host_cores=4), workload), alone)

    @pytest.mark.parametrize("name", ["rl-rollout", "poisson"])
    def test_steps_of_one_shape_end_as_single_steps_do(self, name: str) -> None:
        fleet, course = small_fleet(host_cores=2), fixed_course(Layout.DP)
        fast, steps = (
            simulated(fleet, made(name, 30), course=course, detail=detail)
            for detail in (Detail.FAST, Detail.STEPS)
        )
        assert makespan_s(fast) == pytest.approx(makespan_s(steps))
        assert fast.steps == steps.steps

    def test_work_is_done_one_after_the_other_where_cores_are_for_one_group(self) -> None:
        """A long answer decodes while a long prompt is computed: together they take what both take alone."""
        answer, prompt = batch_of(1, prompt=4, output=60), batch_of(1, prompt=1500, output=1, first_key=1)
        both = Workload(name="both", requests=(*answer, *prompt))
        course = fixed_course(Layout.DP)

        def run(workload: Workload, cores: int | None) -> float:
            return makespan_s(simulated(small_fleet(host_cores=cores), workload, course=course))

        alone = [run(Workload(name="one", requests=tuple(some)), None) for some in (answer, prompt)]
        assert run(both, None) < 0.9 * sum(alone)
        assert run(both, 2) == pytest.approx(sum(alone), rel=0.05)
