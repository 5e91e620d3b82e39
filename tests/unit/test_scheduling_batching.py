"""Continuous batching, chunked prefill, precedence and preemption of one group."""

import pytest

from splash_core.errors import ConfigError, ContextTooLong, InvalidRequest, InvariantBroken
from splash_core.ids import RankId
from splash_core.layout.layout import Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import FinishedEvent, FinishReason, PrefilledEvent, TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.scheduling.step import StepResult
from splash_core.spec.request import PRIORITY_S, SamplingParams
from tests.support.fake_ranks import digests, expected_output, token_after
from tests.support.toy_group import ToyGroup, arena_of


def output(count: int, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=count, **more)  # type: ignore[arg-type]


def rows(group: ToyGroup) -> dict[int, int]:
    assert group.plan is not None
    return {step.seq: step.count for step in group.plan.sequences}


def test_decode_rows_come_first_then_chunks_in_order_of_arrival() -> None:
    group = ToyGroup(chunk_tokens=4)
    first = group.add([1, 2], output(9))
    group.step()
    second, third = group.add([3] * 5, output(2)), group.add([4] * 5, output(2))
    group.begin()
    assert rows(group) == {first: 1, second: 3}
    group.end()
    group.begin()
    assert rows(group) == {first: 1, second: 2, third: 1}
    assert group.plan is not None
    assert [step.sample for step in group.plan.sequences] == [True, True, False]
    group.end()
    group.run()
    for request in group.requests.values():
        request.check()
    group.assert_empty()


def test_owners_share_a_step_so_that_none_is_idle_while_another_computes_it_all() -> None:
    group = ToyGroup(chunk_tokens=8, arena=arena_of(num_ranks=4, ordinary=60))
    prompts = [group.add([1 + index] * 20, output(1)) for index in range(5)]
    group.begin()
    assert rows(group) == dict.fromkeys(prompts[:4], 2)
    group.end()
    short = [group.add([9], output(1)), group.add([8] * 20, output(1))]
    group.begin()
    # What an owner cannot use goes to the oldest; the fifth prompt waits behind the first of its owner.
    assert rows(group) == dict.fromkeys(prompts[:4], 2)
    assert not set(short) & set(rows(group))
    group.end()
    group.run()
    for request in group.requests.values():
        request.check()
    group.assert_empty()


def test_where_all_ranks_hold_a_history_the_oldest_prompt_takes_the_step() -> None:
    for layout in (Layout.TP, Layout.CP):
        group = ToyGroup(layout=layout, chunk_tokens=8, arena=arena_of(num_ranks=4, ordinary=60))
        first, second = group.add([1] * 10, output(1)), group.add([2] * 10, output(1))
        group.begin()
        assert rows(group) == {first: 8}
        group.end()
        group.begin()
        assert rows(group) == {first: 2, second: 6}


def test_one_prompt_alone_takes_the_whole_budget() -> None:
    group = ToyGroup(chunk_tokens=8, arena=arena_of(num_ranks=4, ordinary=60))
    alone = group.add([1] * 20, output(1))
    group.begin()
    assert rows(group) == {alone: 8}


def test_priority_is_served_before_age_until_age_outweighs_it() -> None:
    group = ToyGroup(layout=Layout.TP, chunk_tokens=4, max_running=1)
    running = group.add([1] * 4, output(6))
    group.step()
    old = group.add([2] * 4, output(1))
    group.clock = PRIORITY_S - 1
    urgent = group.add([3] * 4, output(1, priority=-1))
    group.clock = PRIORITY_S + 1
    late = group.add([4] * 4, output(1, priority=-1))
    group.run()
    started = [new.seq for plan in group.plans for new in plan.started]
    assert started == [running, urgent, old, late]


def test_the_less_urgent_is_preempted_even_if_it_is_older() -> None:
    group = ToyGroup(arena=arena_of(num_ranks=1, ordinary=5), admission_overcommit=4.0)
    old, urgent = group.add([1, 2], output(8, priority=1)), group.add([3, 4], output(8))
    group.run()
    starts = [new.seq for plan in group.plans for new in plan.started]
    assert starts == [urgent, old, old]
    for request in group.requests.values():
        request.check()
        assert request.finished is not None


def test_prompts_advance_by_a_row_when_decode_rows_fill_the_budget() -> None:
    group = ToyGroup(chunk_tokens=2, arena=arena_of(num_ranks=1, ordinary=60))
    decoding = [group.add([token], output(20)) for token in range(4)]
    while any(not group.requests[seq].told for seq in decoding):
        group.step()
    late = group.add([5, 6], output(2))
    group.begin()
    assert rows(group) == {**dict.fromkeys(decoding, 1), late: 1}


def test_max_running_bounds_the_batch() -> None:
    group = ToyGroup(max_running=2)
    for _ in range(4):
        group.add([1, 2], output(3))
    group.step()
    assert group.scheduler.count(SeqState.RUNNING) == 2
    assert group.scheduler.count(SeqState.WAITING) == 2
    group.run()
    group.assert_empty()


def test_stop_tokens_end_a_sequence_once_and_are_not_told() -> None:
    prompt = [3, 1, 4]
    unbounded, _ = expected_output(prompt, output(8))
    stop = unbounded[4]
    cut = unbounded.index(stop)
    group = ToyGroup()
    seq = group.add(prompt, output(8, stop_token_ids=(stop,)))
    group.run()
    end = group.requests[seq].finished
    assert group.requests[seq].told == unbounded[:cut]
    assert end is not None
    assert (end.reason, end.stop_token, end.num_generated) == (FinishReason.STOP, stop, cut + 1)


def test_no_stop_before_min_tokens() -> None:
    prompt = [3, 1, 4]
    unbounded, _ = expected_output(prompt, output(8))
    group = ToyGroup()
    seq = group.add(prompt, output(8, stop_token_ids=tuple(range(11)), min_tokens=5))
    group.run()
    end = group.requests[seq].finished
    assert group.requests[seq].told == unbounded[:4]
    assert end is not None
    assert (end.reason, end.stop_token, end.num_generated) == (FinishReason.STOP, unbounded[4], 5)


def test_length_ends_a_sequence_exactly() -> None:
    group = ToyGroup()
    seq = group.add([1], output(3))
    group.run()
    end = group.requests[seq].finished
    assert end is not None
    assert (end.reason, end.stop_token, end.num_generated) == (FinishReason.LENGTH, None, 3)
    assert group.requests[seq].told == expected_output([1], output(3))[0]


@pytest.mark.parametrize("role", [Role.PREFILL, Role.COMBINED])
def test_scoring_a_prompt_generates_nothing(role: Role) -> None:
    group = ToyGroup(role=role, chunk_tokens=2)
    prompt = [1, 2, 3, 4, 5]
    seq = group.add(prompt, SamplingParams(max_tokens=0, prompt_logprobs=0))
    group.run()
    request = group.requests[seq]
    assert request.prefilled is not None
    assert request.prefilled.first_token is None
    assert [entry.token for entry in request.prefilled.prompt_logprobs] == prompt[1:]
    assert request.finished is not None
    assert request.finished.num_generated == 0
    assert not any(step.sample for plan in group.plans for step in plan.sequences)
    group.assert_empty()


def test_a_prefill_group_holds_pages_until_release() -> None:
    group = ToyGroup(role=Role.PREFILL, layout=Layout.TP)
    prompt = [1, 2, 3]
    seq = group.add(prompt, output(5))
    events = group.step()
    assert events is not None
    (event,) = events
    assert isinstance(event, PrefilledEvent)
    assert event == PrefilledEvent(
        seq=seq, request_id=event.request_id, first_token=token_after(digests(prompt)[-1])
    )
    assert group.step() is None
    assert [len(copies) for copies in group.scheduler.copies(seq)] == [2, 2]
    assert group.scheduler.audit().pages_held == 2
    group.scheduler.release(seq)
    group.scheduler.release(seq)
    group.assert_empty()


def test_prompt_logprobs_are_told_with_the_prompt_and_missing_ones_are_a_bug() -> None:
    group = ToyGroup(chunk_tokens=1)
    seq = group.add([5, 6, 7], output(2, prompt_logprobs=1))
    group.run()
    event = group.requests[seq].prefilled
    assert event is not None
    assert [entry.token for entry in event.prompt_logprobs] == [6, 7]

    group = ToyGroup()
    group.add([5, 6, 7], output(2, prompt_logprobs=1))
    assert group.begin()
    assert group.plan is not None
    results = [
        StepResult(step=result.step, rank=result.rank, tokens=result.tokens)
        for result in group.ranks.step(group.plan)
    ]
    with pytest.raises(InvariantBroken, match="2 of 2 positions, first 1"):
        group.scheduler.complete(results)


def test_the_youngest_is_preempted_and_computes_its_tokens_again() -> None:
    # Both want five pages of two tokens; there are five in all.
    group = ToyGroup(arena=arena_of(num_ranks=1, ordinary=5), admission_overcommit=4.0)
    old, young = group.add([1, 2], output(8)), group.add([3, 4], output(8))
    group.step()
    assert group.scheduler.count(SeqState.RUNNING) == 2
    while group.scheduler.count(SeqState.WAITING) == 0:
        assert group.step() is not None
    told = len(group.requests[young].told)
    assert 0 < told < 8
    assert group.requests[old].finished is None
    group.run()
    for request in group.requests.values():
        request.check()
        assert request.finished is not None
    # The ranks learned of it anew: dropped, and started with all tokens known by then.
    starts = [new for plan in group.plans for new in plan.started if new.seq == young]
    assert [len(new.tokens) for new in starts] == [2, 2 + told]
    assert [new.num_prompt for new in starts] == [2, 2]
    group.assert_empty()


def test_a_chunk_of_an_older_prompt_may_take_the_pages_of_a_younger_row() -> None:
    group = ToyGroup(arena=arena_of(num_ranks=1, ordinary=6), admission_overcommit=4.0, chunk_tokens=2)
    old = group.add([1] * 8, output(2))
    young = group.add([2, 3], output(9))
    group.run()
    for seq in (old, young):
        group.requests[seq].check()
        assert group.requests[seq].finished is not None
    group.assert_empty()


def test_without_overcommit_nothing_is_preempted() -> None:
    group = ToyGroup(arena=arena_of(num_ranks=1, ordinary=6))
    seqs = [group.add([1, 2], output(6)) for _ in range(4)]
    group.run()
    starts = [new.seq for plan in group.plans for new in plan.started]
    assert starts == seqs
    group.assert_empty()


def test_owners_balance_pools_and_ties_rotate() -> None:
    group = ToyGroup(layout=Layout.DP, arena=arena_of(num_ranks=3, ordinary=40))
    seqs = [group.add([1, 2], output(4)) for _ in range(3)]
    group.step()
    owners = [group.scheduler.copies(seq)[0][0].rank for seq in seqs]
    assert sorted(owners) == [0, 1, 2]
    long = group.add([1] * 30, output(30))
    group.step()
    crowded = group.scheduler.copies(long)[0][0].rank
    late = [group.add([7], output(1)) for _ in range(2)]
    group.begin()
    assert crowded not in {group.scheduler.copies(seq)[0][0].rank for seq in late}


def test_striped_sequences_start_on_different_ranks() -> None:
    group = ToyGroup(layout=Layout.CP, arena=arena_of(num_ranks=2, ordinary=40))
    seqs = [group.add([1, 2, 3, 4], output(4)) for _ in range(2)]
    group.step()
    first = {seq: [copies[0].rank for copies in group.scheduler.copies(seq)[:2]] for seq in seqs}
    assert sorted(first.values()) == [[RankId(0), RankId(1)], [RankId(1), RankId(0)]]


def test_what_can_never_fit_is_refused_with_the_limit() -> None:
    group = ToyGroup(arena=arena_of(num_ranks=2, ordinary=5, borrowed=4), layout=Layout.TP)
    assert group.scheduler.max_request_tokens == 10
    with pytest.raises(ContextTooLong, match=r"7 prompt tokens and 4 output tokens exceed .* 10 tokens"):
        group.add([1] * 7, output(4))
    group.add([1] * 6, output(4))
    with pytest.raises(InvalidRequest, match="empty"):
        group.add([], output(4))
    assert ToyGroup(max_model_len=6).scheduler.max_request_tokens == 6
    # A prefill group holds prompts only; a group that never replicates projections has room for more.
    ToyGroup(role=Role.PREFILL, max_model_len=6).add([1] * 6, output(99))
    sharded = ToyGroup(
        arena=arena_of(num_ranks=2, ordinary=5, borrowed=4),
        layout=Layout.TP,
        layouts=(Layout.TP, Layout.DOP),
    )
    assert sharded.scheduler.max_request_tokens == 18


@pytest.mark.parametrize(
    ("name", "value"),
    [("chunk_tokens", 0), ("max_running", 0), ("max_model_len", 0), ("admission_overcommit", 0.5)],
)
def test_settings_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        SchedulerConfig(role=Role.DECODE, **{name: value})  # type: ignore[arg-type]


def test_results_come_in_the_order_of_plans_and_must_match() -> None:
    group = ToyGroup()
    with pytest.raises(InvariantBroken, match="no step"):
        group.scheduler.complete([])
    group.add([1, 2], output(2))
    assert group.begin()
    assert group.plan is not None
    results = group.ranks.step(group.plan)
    with pytest.raises(InvariantBroken, match="one result of each of 2 ranks"):
        group.scheduler.complete(results[:1])
    without = [StepResult(step=result.step, rank=result.rank) for result in results]
    with pytest.raises(InvariantBroken, match="draws one token"):
        group.scheduler.complete(without)


def test_tables_and_starts_are_sent_as_differences() -> None:
    group = ToyGroup(arena=arena_of(num_ranks=2, ordinary=20), layout=Layout.TP)
    seq = group.add([1, 2, 3], output(4))
    group.run()
    updates = [(t.first_page, len(t.slots)) for plan in group.plans for t in plan.tables]
    assert updates == [(0, 2), (2, 1)]
    assert [new.seq for plan in group.plans for new in plan.started] == [seq]


def test_a_cancel_during_a_step_takes_effect_when_it_ends() -> None:
    group = ToyGroup()
    seq = group.add([1, 2, 3], output(4))
    group.begin()
    group.cancel(seq)
    assert group.scheduler.audit().pages_held == 2
    assert group.end() == ()
    group.assert_empty()
    group.add([1], output(1))
    group.begin()
    assert group.plan is not None
    assert group.plan.finished == (seq,)
    assert [type(event) for event in group.end()] == [PrefilledEvent, TokenEvent, FinishedEvent]
