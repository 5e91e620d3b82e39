"""Whatever comes, in whatever order of priority: everybody is served, and no user is overtaken for long."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from splash_core.ids import SeqId
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.scheduling.budget import StepBudget, divide_rows
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.spec.request import MOST_PRIORITY, PRIORITY_S, Purpose, SamplingParams
from tests.support.toy_group import ToyGroup, arena_of

_STEP_S = 1.0
_CALM_S = 2 * MOST_PRIORITY * PRIORITY_S
"""After so long nobody who comes is served before anybody who is here."""


@dataclass(frozen=True)
class Comer:
    after: int
    """Steps since the one before."""
    prompt: int
    output: int
    priority: int
    purpose: Purpose

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(
            temperature=0.0, max_tokens=self.output, priority=self.priority, purpose=self.purpose
        )


comers = st.builds(
    Comer,
    after=st.integers(0, 4),
    prompt=st.integers(1, 24),
    output=st.integers(1, 6),
    priority=st.integers(-MOST_PRIORITY, MOST_PRIORITY),
    purpose=st.sampled_from([Purpose.USER, Purpose.USER, Purpose.PROBE]),
)


def group_of(layout: Layout, chunk: int, overcommit: float) -> ToyGroup:
    arena = arena_of(num_ranks=3 if layout is Layout.CP else 2, ordinary=34, borrowed=4)
    return ToyGroup(
        role=Role.COMBINED,
        layout=layout,
        arena=arena,
        chunk_tokens=chunk,
        max_running=3,
        admission_overcommit=overcommit,
    )


def admitted(group: ToyGroup) -> set[SeqId]:
    return {s.seq for s in group.scheduler._parts.roster if s.state is SeqState.RUNNING}


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(comers, min_size=1, max_size=14),
    layout=st.sampled_from(STANDARD_LAYOUTS),
    chunk=st.integers(1, 9),
    overcommit=st.sampled_from([1.0, 3.0]),
)
def test_everybody_finishes_and_only_priority_overtakes(
    arrivals: list[Comer], layout: Layout, chunk: int, overcommit: float
) -> None:
    group = group_of(layout, chunk, overcommit)
    came: dict[SeqId, tuple[float, Comer]] = {}
    begun: list[SeqId] = []

    def step() -> bool:
        alive = group.step() is not None
        group.clock += _STEP_S
        fresh = (admitted(group) | {s for s in came if group.requests[s].told}) - set(begun)
        begun.extend(sorted(fresh, key=lambda s: (came[s][1].sampling.precedence(came[s][0]), s)))
        return alive

    for comer in arrivals:
        for _ in range(comer.after):
            step()
        seq = group.add([3 + comer.prompt % 8] * comer.prompt, comer.sampling)
        came[seq] = (group.clock, comer)
    for _ in range(2000):
        if not step():
            break
    for request in group.requests.values():
        assert request.finished is not None
        request.check()
    group.assert_empty()
    for place, one in enumerate(begun):
        came_s, comer = came[one]
        for other_s, other in (came[earlier] for earlier in begun[:place]):
            if (comer.purpose, other.purpose) == (Purpose.PROBE, Purpose.USER):
                continue
            # Who was served first had come first, or was more urgent than the other had waited longer.
            ahead_s = (comer.priority - other.priority) * PRIORITY_S
            first = comer.purpose is other.purpose and other_s - came_s <= max(ahead_s, 0.0)
            assert first or came_s > other_s


@settings(max_examples=40, deadline=None)
@given(chunk=st.integers(1, 6), layout=st.sampled_from(STANDARD_LAYOUTS))
def test_a_stream_of_urgent_requests_holds_nobody_off_for_ever(chunk: int, layout: Layout) -> None:
    group = group_of(layout, chunk, 1.0)
    patient = group.add([5] * 12, SamplingParams(temperature=0.0, max_tokens=2, priority=MOST_PRIORITY))
    steps = 0
    while group.requests[patient].finished is None:
        group.add([6] * 4, SamplingParams(temperature=0.0, max_tokens=2, priority=-MOST_PRIORITY))
        group.step()
        group.clock += _STEP_S
        steps += 1
        # Those who are served before it came within `_CALM_S`: each takes a few steps of its own.
        assert steps < _CALM_S / _STEP_S * 10 + 100
    group.requests[patient].check()


@given(
    wants=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), max_size=12), budget=st.integers(1, 64)
)
def test_a_division_wastes_no_row_and_forgets_no_owner(wants: list[tuple[int, int]], budget: int) -> None:
    taken = divide_rows(wants, budget)
    assert all(0 <= rows <= left for rows, (_, left) in zip(taken, wants, strict=True))
    assert sum(taken) == min(budget, sum(left for _, left in wants))
    lanes = {lane for lane, _ in wants}
    if budget >= len(lanes):
        for lane in lanes:
            first = next(index for index, (held, _) in enumerate(wants) if held == lane)
            assert taken[first] >= 1
    else:
        # A row each for the oldest, of owners that have none yet.
        assert taken[0] == max(taken) == 1


@given(most=st.integers(1, 100), rows=st.integers(-5, 200))
def test_a_limit_keeps_within_what_memory_is_sized_for(most: int, rows: int) -> None:
    budget = StepBudget(most)
    assert budget.rows == most
    budget.limit(rows)
    assert 1 <= budget.rows <= most
