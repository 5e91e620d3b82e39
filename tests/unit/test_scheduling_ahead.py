"""One step ahead, rule by rule: what may be planned beside a step under way, and what waits for its end."""

import pytest

from splash_core.errors import InvariantBroken
from splash_core.ids import RankId, SeqId, StepId
from splash_core.layout.layout import ORDINARY_ONLY, Layout
from splash_core.scheduling.events import FinishedEvent, PrefilledEvent, SwitchedEvent, TokenEvent
from splash_core.scheduling.leases import Grant
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.scheduling.step import DrawnToken, SequenceStep, StepPlan
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.support.fake_ranks import expected_output
from tests.support.toy_group import ToyGroup, arena_of


def output(count: int, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=count, **more)  # type: ignore[arg-type]


def newest(group: ToyGroup) -> StepPlan:
    """The plan sent last."""
    return group.sent[-1].plan


def rows(plan: StepPlan) -> dict[SeqId, SequenceStep]:
    return {step.seq: step for step in plan.sequences}


def two_under_way(**more: object) -> tuple[ToyGroup, SeqId]:
    """A sequence of three prompt tokens whose first and second output token are being drawn."""
    group = ToyGroup(layout=Layout.DP)
    seq = group.add([1, 2, 3], output(8, **more))
    assert group.begin()
    assert group.begin()
    return group, seq


def landed(group: ToyGroup, prompt: list[int], count: int) -> Grant:
    grant = group.reserve(prompt, output(count))
    assert grant is not None
    group.claim(grant)
    group.write(grant)
    group.land(grant)
    return grant


def finish(group: ToyGroup) -> None:
    while group.sent:
        group.end()
    group.run(ahead=True)
    for request in group.requests.values():
        request.check()
        assert request.cancelled or request.finished is not None
    group.assert_empty()


# ------------------------------------------------------------------------------------ tokens


def test_a_row_begins_with_the_token_that_the_step_before_draws() -> None:
    group, seq = two_under_way()
    first, second = (rows(sent.plan)[seq] for sent in group.sent)
    assert (first.start, first.tokens, first.sample) == (0, (1, 2, 3), True)
    assert (second.start, second.tokens, second.count, second.before) == (3, DrawnToken(StepId(1)), 1, ())
    group.end()
    group.begin()
    third = rows(newest(group))[seq]
    # What the first step drew is known to the leader now, but to one rank only.
    told = group.requests[seq].told
    assert (third.start, third.tokens, third.before) == (4, DrawnToken(StepId(2)), tuple(told))
    group.end()
    group.end()
    # Nothing is under way: the next row is told as it is, with what ranks were not told.
    group.begin()
    fourth = rows(newest(group))[seq]
    told = group.requests[seq].told
    assert (fourth.start, fourth.tokens, fourth.before) == (5, (told[2],), (told[1],))
    finish(group)


def test_two_steps_are_under_way_at_most_and_end_in_order() -> None:
    group, _ = two_under_way()
    with pytest.raises(InvariantBroken, match="step 1 is still under way"):
        group.scheduler.next_plan()
    results = group.ranks.step(group.sent[0].plan)
    later = group.ranks.step(group.sent[1].plan)
    with pytest.raises(InvariantBroken, match="step 1 needs one result"):
        group.scheduler.complete(later)
    group.scheduler.complete(results)
    group.scheduler.complete(later)
    assert not group.scheduler.in_flight


@pytest.mark.parametrize("count", [1, 2, 3])
def test_length_is_exact_by_count(count: int) -> None:
    group = ToyGroup()
    seq = group.add([1, 2, 3], output(count))
    group.run(ahead=True)
    sampled = [plan for plan in group.plans if rows(plan).get(seq) is not None]
    assert len(sampled) == count
    finish(group)


# -------------------------------------------------------------------------------------- ends


def test_a_stop_is_told_at_once_and_its_pages_go_when_the_step_behind_has_ended() -> None:
    first = expected_output([1, 2, 3], output(8))[0][0]
    group, seq = two_under_way(stop_token_ids=(first,))
    events = group.end()
    assert [type(event) for event in events] == [PrefilledEvent, FinishedEvent]
    assert group.scheduler.audit().pages_held == 2
    assert not group.begin()
    # The row in the second step draws a token that nobody hears of.
    assert group.end() == ()
    assert group.scheduler.count() == 0
    finish(group)
    group.add([4], output(1))
    group.begin()
    assert newest(group).finished == (seq,)


def test_a_cancel_frees_when_all_steps_under_way_have_ended() -> None:
    group, seq = two_under_way()
    group.cancel(seq)
    group.cancel(seq)
    assert group.end() == ()
    assert group.scheduler.audit().pages_held == 2
    assert not group.begin()
    assert group.end() == ()
    finish(group)


def test_a_sequence_that_waits_and_is_cancelled_never_runs() -> None:
    group = ToyGroup(max_running=1)
    group.add([1, 2, 3], output(4))
    late = group.add([4, 5], output(4))
    group.begin()
    group.cancel(late)
    group.run(ahead=True)
    assert all(late not in rows(plan) for plan in group.plans)
    finish(group)


def test_pages_of_an_ended_sequence_are_leased_to_nobody_while_a_step_may_write_them() -> None:
    group = ToyGroup(role=Role.DECODE, arena=arena_of(num_ranks=1, ordinary=3))
    stop = expected_output([1, 2, 3], output(3))[0][1]
    grant = group.reserve([1, 2, 3], output(3, stop_token_ids=(stop,)))
    assert grant is not None
    group.claim(grant)
    group.write(grant)
    group.land(grant)
    assert group.begin()
    assert group.begin()
    assert any(isinstance(event, FinishedEvent) for event in group.end())
    assert group.reserve([1, 2, 3], output(3)) is None
    group.end()
    assert group.reserve([1, 2, 3], output(3)) is not None


# ---------------------------------------------------------------------------------- prompts


def test_chunks_and_admissions_run_ahead() -> None:
    group = ToyGroup(layout=Layout.TP, chunk_tokens=4)
    long, short = group.add([1] * 10, output(2)), group.add([2, 3], output(1))
    sizes = []
    while group.step_ahead() is not None:
        sizes = [{seq: step.count for seq, step in rows(plan).items()} for plan in group.plans]
    assert sizes[:3] == [{long: 4}, {long: 4}, {long: 2, short: 2}]
    finish(group)


def test_a_prompt_is_held_for_its_push_when_its_last_chunk_is_reported() -> None:
    group = ToyGroup(role=Role.PREFILL, layout=Layout.TP, chunk_tokens=4)
    done, next_one = group.add([1, 2, 3, 4], output(9)), group.add([5, 6, 7], output(9))
    assert group.begin()
    assert group.begin()
    assert list(rows(newest(group))) == [next_one]
    (event,) = group.end()
    assert isinstance(event, PrefilledEvent)
    assert event.seq == done
    assert group.scheduler.count(SeqState.HANDOFF) == 1
    # Nobody runs it any more, so a push may read it, and may end, beside the step under way.
    group.scheduler.release(done)
    group.scheduler.check_integrity()
    group.end()
    group.scheduler.release(next_one)
    group.assert_empty()


def test_scores_of_a_prompt_are_told_when_its_last_chunk_is_reported() -> None:
    group = ToyGroup(chunk_tokens=2)
    seq = group.add([5, 6, 7, 8], SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert group.begin()
    assert group.begin()
    assert not group.end()
    assert [type(event) for event in group.end()] == [PrefilledEvent, FinishedEvent]
    event = group.requests[seq].prefilled
    assert event is not None
    assert [entry.token for entry in event.prompt_logprobs] == [6, 7, 8]
    group.assert_empty()


# ------------------------------------------------------------------------------- what waits


def test_preemption_waits_for_the_victims_token() -> None:
    group = ToyGroup(arena=arena_of(num_ranks=1, ordinary=5), admission_overcommit=4.0)
    group.add([1, 2], output(8))
    young = group.add([3, 4], output(8))
    waited = False
    while group.scheduler.count(SeqState.WAITING) == 0 or not group.sent:
        if len(group.sent) == 2:
            group.end()
        elif not group.begin():
            waited = True
            group.end()
    # All that was drawn for it was known when it had to go.
    assert waited
    told = len(group.requests[young].told)
    assert told == group.scheduler._parts.roster.get(young).num_generated > 0
    finish(group)


def test_a_switch_waits_and_the_step_behind_it_does_not() -> None:
    group, _ = two_under_way()
    assert group.scheduler.request_switch(Layout.TP) is None
    group.end()
    assert not group.begin()
    group.end()
    assert group.begin()
    assert newest(group).manifest is not None
    assert group.begin()
    assert (newest(group).manifest, newest(group).layout) == (None, Layout.TP)
    # It is as good as done for whoever asks, but its event is still to come.
    assert group.scheduler.request_switch(Layout.TP) is None
    assert isinstance(group.end()[0], SwitchedEvent)
    assert isinstance(group.scheduler.request_switch(Layout.TP), SwitchedEvent)
    finish(group)


def test_a_lease_beside_a_manifest_gets_no_slot_that_it_vacates() -> None:
    group = ToyGroup(role=Role.DECODE, layout=Layout.TP, arena=arena_of(num_ranks=2, ordinary=8))
    landed(group, [1, 2, 3, 4, 5, 6], 4)
    group.step()
    group.scheduler.request_switch(Layout.CP)
    group.tidies = False
    assert group.begin()
    assert newest(group).manifest is not None
    assert group.begin()
    assert group.reserve([1], output(1)) is None  # which slots they are is not known yet
    group.scheduler.tidy()
    free = [group.table.free_slots(RankId(rank), lent=ORDINARY_ONLY) for rank in range(2)]
    grant = group.reserve([1], output(1))
    assert grant is not None  # the group looks whether it touches what the step does
    group.claim(grant)
    group.write(grant)
    group.end()
    group.land(grant)
    after = [group.table.free_slots(RankId(rank), lent=ORDINARY_ONLY) for rank in range(2)]
    assert sum(after) > sum(free)  # vacated slots are back
    finish(group)


def test_a_landed_sequence_that_lies_elsewhere_waits_for_its_relocation() -> None:
    group = ToyGroup(role=Role.DECODE, layout=Layout.TP, arena=arena_of(num_ranks=2, ordinary=20))
    landed(group, [1, 2, 3], 9)
    group.step()
    assert group.begin()
    assert group.begin()
    late = landed(group, [4, 5, 6], 9)
    group.end()
    assert not group.begin()
    group.end()
    assert group.begin()
    assert newest(group).manifest is not None
    assert late.seq in rows(newest(group))
    finish(group)


def test_a_landed_sequence_in_its_place_runs_at_once() -> None:
    group = ToyGroup(role=Role.DECODE, layout=Layout.DP, arena=arena_of(num_ranks=2, ordinary=20))
    landed(group, [1, 2, 3], 9)
    assert group.begin()
    late = landed(group, [4, 5, 6], 9)
    assert group.begin()
    assert late.seq in rows(newest(group))
    finish(group)


def test_making_way_for_a_landing_waits_for_the_step_under_way() -> None:
    group = ToyGroup(
        role=Role.DECODE, layout=Layout.DOP, arena=arena_of(num_ranks=1, ordinary=6, borrowed=12)
    )
    landed(group, [1, 2, 3, 4, 5], 5)
    landed(group, [1, 2, 3, 4, 5], 5)
    assert group.begin()
    # Running pages are in the ordinary slots that it needs.
    assert group.reserve([1, 2, 3, 4, 5], output(5)) is None
    assert not group.begin()
    group.end()
    assert group.begin()
    assert newest(group).manifest is not None
    group.end()
    landed(group, [1, 2, 3, 4, 5], 5)
    finish(group)


# ----------------------------------------------------------------------------- copying ahead


def test_copies_ahead_go_on_one_step_ahead_and_leave_out_what_runs_no_more() -> None:
    arena = arena_of(num_ranks=2, ordinary=60)
    group = ToyGroup(layout=Layout.CP, arena=arena, precopy_bytes_per_step=arena.slot_bytes)
    long = group.add([1] * 24, output(30))
    short = group.add([2] * 24, output(4))
    group.step()
    assert group.scheduler.request_switch(Layout.TP, SwitchMode.PRECOPIED) is None
    ahead_of_copies = 0
    while not group.switched:
        behind = bool(group.sent)
        if len(group.sent) == 2 or not group.begin():
            group.end()
            continue
        plan = newest(group)
        if plan.precopy is None:
            continue
        ahead_of_copies += behind
        pages = {move.page for move in plan.precopy.moves}
        sequence = group.scheduler._parts.roster.find(short)
        if sequence is not None and sequence.remaining == 0:
            assert not pages.intersection(sequence.pages)
    assert ahead_of_copies > 3
    assert group.requests[long].finished is None
    finish(group)


def test_copies_ahead_are_given_back_when_no_step_is_under_way() -> None:
    arena = arena_of(num_ranks=2, ordinary=60)
    group = ToyGroup(layout=Layout.CP, arena=arena, precopy_bytes_per_step=arena.slot_bytes)
    group.add([1] * 24, output(30))
    group.step()
    group.scheduler.request_switch(Layout.TP, SwitchMode.PRECOPIED)
    for _ in range(4):
        group.step()
    assert group.begin()
    assert newest(group).precopy is not None
    held = sum(rank.precopied for rank in group.scheduler.audit().ranks)
    assert held > 0
    group.scheduler.request_switch(Layout.CP)  # called off
    assert not group.begin()
    assert sum(rank.precopied for rank in group.scheduler.audit().ranks) == held
    group.end()
    assert group.begin()
    assert sum(rank.precopied for rank in group.scheduler.audit().ranks) == 0
    finish(group)


def test_tokens_are_told_in_order_whatever_is_under_way() -> None:
    group = ToyGroup()
    seq = group.add([1, 2, 3], output(6))
    indices = []
    while (events := group.step_ahead()) is not None:
        indices += [event.index for event in events if isinstance(event, TokenEvent) and event.seq == seq]
    assert indices == list(range(6))
    finish(group)
