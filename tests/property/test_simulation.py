"""Whatever is asked of whatever fleet: many steps at once are single steps, and nothing is lost or held."""

from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.layout.layout import STANDARD_LAYOUTS
from splash_core.scheduling.roles import Role
from splash_core.simulate.cluster import Cluster, Course, Detail
from splash_core.simulate.comparison import fixed_course, policy_course
from splash_core.simulate.counted import CountedMachine
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.workload import Request, Workload
from tests.support.simulated import assert_same_course, copying_course, policies, small_fleet

REQUESTS = st.lists(
    st.tuples(st.floats(0.0, 6.0), st.integers(1, 500), st.integers(1, 60), st.integers(0, 40)),
    min_size=1,
    max_size=25,
)
GROUPS = st.sampled_from([{Role.PREFILL: 1, Role.DECODE: 2}, {Role.COMBINED: 1}])
COURSES = st.sampled_from([None, *STANDARD_LAYOUTS])
EAGER = policies("[all]\ndwell_s = 0.5\ninterval_s = 0.3\nmargin = 0.0\nconfirm = 1")


def workload_of(rows: list[tuple[float, int, int, int]]) -> Workload:
    ordered = sorted(rows)
    return Workload(
        name="drawn",
        requests=tuple(
            Request(
                key=key,
                arrival_s=when,
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=output + spare,
            )
            for key, (when, prompt, output, spare) in enumerate(ordered)
        ),
    )


def holds(fleet: Fleet, course: Course, rows: list[tuple[float, int, int, int]]) -> None:
    """Steps at once are single steps; everybody is served or refused, and nothing is held in the end."""
    ledgers = []
    for detail in (Detail.FAST, Detail.STEPS):
        cluster = Cluster(fleet, course, detail=detail)
        ledgers.append(cluster.run(workload_of(rows)))
        for station in (station for stations in cluster.stations.values() for station in stations):
            assert isinstance(station.machine, CountedMachine)
            assert station.machine.pages_held == 0
    assert_same_course(*ledgers)
    assert len(ledgers[0].finished) + ledgers[0].refused.total() == len(rows)


@settings(max_examples=25, deadline=None)
@given(REQUESTS, GROUPS, COURSES, st.integers(40, 200), st.integers(1, 12), st.booleans())
def test_fast_forward_is_step_by_step(
    rows: list[tuple[float, int, int, int]],
    groups: dict[Role, int],
    fixed: object,
    pages: int,
    max_running: int,
    records: bool,
) -> None:
    fleet = small_fleet(
        pages=pages, groups=groups, max_running=max_running, chunk_tokens=64, records_steps=records
    )
    course = policy_course(fleet, EAGER) if fixed is None else fixed_course(fixed)  # type: ignore[arg-type]
    holds(fleet, course, rows)


@settings(max_examples=25, deadline=None)
@given(
    REQUESTS, GROUPS, st.integers(40, 200), st.integers(1, 12), st.sampled_from([1 << 17, 1 << 20, 1 << 24])
)
def test_and_so_it_is_where_switches_copy_ahead(
    rows: list[tuple[float, int, int, int]], groups: dict[Role, int], pages: int, max_running: int, rate: int
) -> None:
    fleet = small_fleet(
        pages=pages, groups=groups, max_running=max_running, chunk_tokens=64, precopy_bytes_per_step=rate
    )
    holds(fleet, copying_course(fleet, EAGER), rows)
