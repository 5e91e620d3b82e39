"""Handoffs in numbers: aborts around every message, and pools that are admitted to their limit."""

import pytest

from splash_core.errors import Conflict
from splash_core.layout.layout import Layout
from splash_core.scheduling.leases import Grant, LeaseState
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.spec.request import SamplingParams
from tests.support.toy_group import ToyGroup, arena_of

PROMPT = (1, 2, 3, 4, 5)


def decode_group(layout: Layout = Layout.DP, **settings: object) -> ToyGroup:
    return ToyGroup(role=Role.DECODE, layout=layout, **settings)  # type: ignore[arg-type]


def land(group: ToyGroup, prompt: tuple[int, ...] = PROMPT, max_tokens: int = 2) -> Grant:
    grant = group.reserve(prompt, SamplingParams(max_tokens=max_tokens))
    assert grant is not None
    group.claim(grant)
    group.write(grant)
    group.land(grant)
    return grant


def test_a_thousand_completions_that_come_just_after_the_abort() -> None:
    """Each is answered by its lease, never by its request's name, and gives the pages back at once."""
    group = decode_group()
    for turn in range(1000):
        grant = group.reserve(PROMPT, SamplingParams(max_tokens=4))
        assert grant is not None
        group.claim(grant)
        group.write(grant)
        group.cancel(grant.seq)
        assert [lease.state for lease in group.scheduler.audit().leases] == [LeaseState.QUARANTINED]
        with pytest.raises(Conflict, match="was cancelled"):
            group.scheduler.landed(group.completion(grant))
        if turn % 2:  # the writer abandons what was refused, or repeats itself
            group.scheduler.abandon(grant.lease, attempt=1, incarnation=grant.incarnation, writer="writer")
        else:
            with pytest.raises(Conflict, match="has ended"):
                group.scheduler.landed(group.completion(grant))
        group.assert_empty()
    land(group)
    group.run()
    group.assert_empty()


def test_a_completion_of_an_earlier_lease_of_the_same_request_changes_nothing() -> None:
    group = decode_group()
    first = group.reserve(PROMPT, SamplingParams(max_tokens=2))
    assert first is not None
    group.claim(first)
    group.cancel(first.seq)
    again = group.scheduler.reserve(
        group.scheduler.audit().leases[0].owner, PROMPT, SamplingParams(max_tokens=2)
    )
    assert again is not None
    assert again.lease != first.lease
    with pytest.raises(Conflict):
        group.scheduler.landed(group.completion(first))
    assert group.scheduler.count(SeqState.LEASED) == 1


def test_ninety_in_a_hundred_requests_leave_while_their_prompts_are_computed() -> None:
    """Reservations return to zero with the writers' last words, and new traffic flows meanwhile."""
    group = decode_group(arena=arena_of(num_ranks=2, ordinary=24), max_running=16)
    served = 0
    for index in range(200):
        grant = group.reserve(PROMPT, SamplingParams(max_tokens=2))
        assert grant is not None, "an abort of the past holds pages"
        if index % 3:
            group.claim(grant)
        if index % 10:
            group.cancel(grant.seq)
            if index % 3:
                group.scheduler.abandon(
                    grant.lease, attempt=1, incarnation=grant.incarnation, writer="writer"
                )
            continue
        group.claim(grant)
        group.write(grant)
        group.land(grant)
        group.run()
        group.requests[grant.seq].check()
        served += 1
    assert served == 20
    group.assert_empty()


def test_an_owner_that_is_overcommitted_holds_up_nobody_else() -> None:
    """Two requests outgrow one rank together: the younger is computed again, and the other rank goes on."""
    group = decode_group(
        arena=arena_of(num_ranks=2, ordinary=8),
        admission_overcommit=4.0,
        chunk_tokens=4,
        layouts=(Layout.DP,),
    )
    grants = [land(group, PROMPT[:2], max_tokens=12) for _ in range(4)]
    by_rank = {rank: [g.seq for g in grants if g.pages[0].rank == rank] for rank in (0, 1)}
    # The other rank has one sequence, which never lacks room.
    alone, spare = by_rank[1]
    group.cancel(spare)
    preempted = False
    for _ in range(60):
        before = len(group.requests[alone].told)
        if group.step() is None:
            break
        preempted |= group.scheduler.count(SeqState.WAITING) > 0
        request = group.requests[alone]
        assert request.finished or len(request.told) == before + 1, "a full rank held up another"
    assert preempted
    for grant in grants:
        if grant.seq != spare:
            assert group.requests[grant.seq].finished is not None
            group.requests[grant.seq].check()
    group.assert_empty()


def test_a_preempted_request_is_computed_again_where_it_is() -> None:
    """RUNNING → WAITING → RUNNING inside the decode group: no lease, no other group, no token told twice."""
    group = decode_group(arena=arena_of(num_ranks=1, ordinary=5), admission_overcommit=9.0, chunk_tokens=3)
    grants = [land(group, PROMPT[:2], max_tokens=8) for _ in range(2)]
    while group.scheduler.count(SeqState.WAITING) == 0:
        assert group.step() is not None
    (victim,) = group.scheduler._parts.roster.within(SeqState.WAITING)
    told = len(group.requests[victim.seq].told)
    assert told > 0
    assert group.scheduler.audit().leases == ()
    group.run()
    starts = [new for plan in group.plans for new in plan.started if new.seq == victim.seq]
    assert [len(new.tokens) for new in starts] == [3, 2 + told]
    assert starts[1].num_prompt == 2
    for grant in grants:
        group.requests[grant.seq].check()
    group.assert_empty()


@pytest.mark.parametrize("layout", [Layout.TP, Layout.CP, Layout.DP, Layout.DOP])
def test_admitting_more_than_fits_costs_steps_but_falls_off_no_cliff(layout: Layout) -> None:
    """Reservations count projected growth; a sweep of the overcommitment moves the work, it loses none."""
    steps = {}
    for overcommit in (1.0, 1.5, 2.0, 3.0):
        group = decode_group(
            layout,
            arena=arena_of(num_ranks=2, ordinary=16),
            admission_overcommit=overcommit,
            layouts=(layout,),
            chunk_tokens=8,
        )
        waiting = [PROMPT[: 1 + index % 5] for index in range(24)]
        while waiting or group.scheduler.count():
            grant = group.reserve(waiting[0], SamplingParams(max_tokens=9)) if waiting else None
            if grant is not None:
                waiting.pop(0)
                group.claim(grant)
                group.write(grant)
                group.land(grant)
            else:
                group.step()
        assert all(request.finished for request in group.requests.values())
        for request in group.requests.values():
            request.check()
        steps[overcommit] = len(group.plans)
        group.assert_empty()
    assert max(steps.values()) <= 1.25 * steps[1.0], steps
