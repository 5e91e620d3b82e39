"""Switches and relocations as a group's leader plans them, and the views on a group."""

from typing import Any

import pytest

from splash_core.errors import ConfigError, Conflict, InvariantBroken
from splash_core.ids import SeqId
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import LayoutPool, Phase, WaitingSequence
from splash_core.scheduling import relocation
from splash_core.scheduling.events import SwitchDeferred, SwitchedEvent
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Primitive, Refusal, SwitchManifest, SwitchMode
from splash_core.switch.planner import plan_switch
from tests.support.toy_group import ToyGroup, arena_of

PAIRS = [(a, b) for a in Layout for b in Layout if a != b]


def output(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count)


def owners(group: ToyGroup) -> dict[SeqId, set[int]]:
    return {
        seq: {copy.rank for page in group.scheduler.copies(seq) for copy in page}
        for seq, request in group.requests.items()
        if request.finished is None
    }


@pytest.mark.parametrize("mode", [SwitchMode.BLOCKING, SwitchMode.OVERLAPPED])
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_running_waiting_and_half_prefilled_sequences_survive(
    before: Layout, after: Layout, mode: SwitchMode
) -> None:
    group = ToyGroup(
        layout=before, arena=arena_of(num_ranks=2, ordinary=20, borrowed=6), chunk_tokens=5, max_running=3
    )
    for prompt in ([1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [1] * 9, [2]):
        group.add(prompt, output(6))
    for _ in range(3):
        group.step()
    states = [group.scheduler.count(state) for state in (SeqState.RUNNING, SeqState.WAITING)]
    assert states == [3, 1]
    assert group.scheduler.request_switch(after, mode) is None
    assert group.scheduler.layout == before
    group.begin()
    assert group.plan is not None
    assert (group.plan.layout, group.plan.epoch, group.plan.mode) == (after, 1, mode)
    assert group.plan.num_rows > 0
    manifest = group.plan.manifest
    assert manifest is not None
    group.end()
    (event,) = group.switched
    layers = group.arena.num_layers
    moved = sum(move.src != move.dst for move in manifest.moves) * layers
    assert event == SwitchedEvent(
        layout_from=before,
        layout_to=after,
        epoch=group.scheduler.epoch,
        mode=mode,
        bytes_received=moved,
        step_s=2.0,
        wait_s=0.25,
    )
    group.run()
    for request in group.requests.values():
        assert request.finished is not None
        request.check()
    group.assert_empty()


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_an_idle_group_switches_without_rows(before: Layout, after: Layout) -> None:
    group = ToyGroup(layout=before)
    group.scheduler.request_switch(after)
    group.begin()
    assert group.plan is not None
    assert (group.plan.sequences, group.plan.layout) == ((), after)
    group.end()
    assert group.switched[0].layout_to == group.scheduler.layout == after
    assert group.step() is None


def test_the_present_layout_is_answered_at_once() -> None:
    group = ToyGroup(layout=Layout.CP)
    event = group.scheduler.request_switch(Layout.CP)
    assert isinstance(event, SwitchedEvent)
    assert (event.layout_from, event.layout_to, event.epoch, event.bytes_received) == ("CP", "CP", 0, 0)
    assert group.step() is None


def test_one_switch_at_a_time_and_only_to_known_layouts() -> None:
    group = ToyGroup(layout=Layout.DP, layouts=(Layout.DP, Layout.CP, Layout.DOP))
    with pytest.raises(Conflict, match="TP is not among"):
        group.scheduler.request_switch(Layout.TP)
    assert group.scheduler.request_switch(Layout.CP) is None
    assert group.scheduler.request_switch(Layout.CP) is None
    with pytest.raises(Conflict, match="switch to CP is scheduled"):
        group.scheduler.request_switch(Layout.DOP)
    with pytest.raises(Conflict, match="starts in TP"):
        ToyGroup(layout=Layout.TP, layouts=(Layout.DP,))
    with pytest.raises(ConfigError, match="less than a page of 16 bytes"):
        ToyGroup(staging_bytes=15)


def test_owners_stay_where_the_history_stays() -> None:
    group = ToyGroup(layout=Layout.DP, arena=arena_of(num_ranks=3, ordinary=20, borrowed=4))
    for length in (3, 9, 5, 2):
        group.add([1] * length, output(4))
    group.step()
    before = owners(group)
    group.scheduler.request_switch(Layout.DOP)
    group.begin()
    assert group.plan is not None
    assert group.plan.manifest is not None
    assert (group.plan.manifest.kv, group.plan.manifest.moves) == (Primitive.KEEP, ())
    group.end()
    assert owners(group) == before


@pytest.mark.parametrize("before", [Layout.TP, Layout.CP])
def test_new_owners_balance_what_sequences_will_hold(before: Layout) -> None:
    group = ToyGroup(layout=before, arena=arena_of(num_ranks=2, ordinary=60))
    long, *short = (group.add([1, 2], output(count)) for count in (40, 9, 9, 9, 9))
    group.step()
    group.scheduler.request_switch(Layout.DP)
    group.step()
    held = owners(group)
    assert all(len(ranks) == 1 for ranks in held.values())
    assert all(held[seq] != held[long] for seq in short)


def test_a_switch_that_does_not_fit_is_refused_with_numbers_and_changes_nothing() -> None:
    group = ToyGroup(layout=Layout.DOP, arena=arena_of(num_ranks=2, ordinary=4, borrowed=4))
    for _ in range(4):
        group.add([1, 2, 3, 4], output(4))
    group.step()
    group.step()
    refusal = group.scheduler.request_switch(Layout.TP)
    assert isinstance(refusal, Refusal)
    assert refusal.needed_slots is not None
    assert refusal.free_slots is not None
    assert refusal.needed_slots > refusal.free_slots
    assert group.scheduler.layout == Layout.DOP
    assert not group.scheduler.snapshot().switch_pending
    group.run()
    for request in group.requests.values():
        request.check()


def test_a_switch_that_fits_no_longer_at_the_boundary_is_refused_as_an_event() -> None:
    group = ToyGroup(
        role=Role.DECODE, layout=Layout.DP, arena=arena_of(num_ranks=2, ordinary=6), admission_overcommit=3.0
    )
    running = group.reserve([1, 2, 3, 4], output(4))
    assert running is not None
    group.claim(running)
    group.write(running)
    group.land(running)
    assert group.scheduler.request_switch(Layout.TP) is None
    assert group.scheduler.snapshot().switch_pending
    late = [group.reserve([1, 2, 3, 4], output(4)) for _ in range(3)]
    group.begin()
    assert group.plan is not None
    assert (group.plan.layout, group.plan.manifest) == (Layout.DP, None)
    group.end()
    (event,) = group.refused
    assert event.retry
    assert event.refusal.free_slots == 0
    for grant in late:
        assert grant is not None
        group.cancel(grant.seq)
    assert group.scheduler.request_switch(Layout.TP) is None
    group.run()
    assert group.scheduler.layout == Layout.TP
    group.requests[running.seq].check()
    group.assert_empty()


def test_a_push_from_a_borrowed_slot_defers_a_switch_and_keeps_new_pages_out() -> None:
    group = ToyGroup(
        role=Role.PREFILL, layout=Layout.DOP, arena=arena_of(num_ranks=2, ordinary=4, borrowed=4)
    )
    seqs = [group.add([1, 2, 3, 4, 5], output(4)) for _ in range(4)]
    group.step()
    borrowed = set(group.arena.borrowed)
    under = [
        seq
        for seq in seqs
        if any(copy.slot in borrowed for page in group.scheduler.copies(seq) for copy in page)
    ]
    assert under
    for seq in seqs:
        if seq not in under:
            group.scheduler.release(seq)
            group.requests[seq].released = True
    outcome = group.scheduler.request_switch(Layout.DP)
    assert isinstance(outcome, SwitchDeferred)
    late = group.add([6, 7, 8], output(4))
    group.step()
    assert all(copy.slot not in borrowed for page in group.scheduler.copies(late) for copy in page)
    for seq in under:
        group.scheduler.release(seq)
        group.requests[seq].released = True
    assert group.scheduler.request_switch(Layout.DP) is None
    group.step()
    assert group.scheduler.layout == Layout.DP
    assert group.scheduler.audit().borrowed_pages_used > 0


def test_leased_pages_stay_through_a_switch_and_are_relocated_after_landing() -> None:
    group = ToyGroup(role=Role.DECODE, layout=Layout.DP, arena=arena_of(num_ranks=2, ordinary=12, borrowed=4))
    grant = group.reserve([1, 2, 3, 4, 5, 6, 7], output(4))
    assert grant is not None
    group.claim(grant)
    places = group.scheduler.copies(grant.seq)
    group.scheduler.request_switch(Layout.CP)
    group.step()
    assert group.scheduler.copies(grant.seq) == places
    group.write(grant)
    group.land(grant)
    group.begin()
    assert group.plan is not None
    manifest = group.plan.manifest
    assert manifest is not None
    assert (manifest.layout_from, manifest.layout_to, manifest.kv) == ("CP", "CP", Primitive.ALL_TO_ALL)
    group.end()
    assert owners(group)[grant.seq] == {0, 1}
    group.run()
    group.requests[grant.seq].check()
    group.assert_empty()


def test_a_relocation_keeps_out_of_borrowed_slots_while_a_switch_waits_for_them() -> None:
    group = ToyGroup(role=Role.DECODE, layout=Layout.CP, arena=arena_of(num_ranks=2, ordinary=7, borrowed=6))
    early = group.reserve([1, 2, 3, 4, 5, 6, 7], output(2))
    assert early is not None
    group.claim(early)
    group.scheduler.request_switch(Layout.DOP)
    group.step()
    # Running histories fill the ordinary slots that leases leave, and grow into borrowed ones.
    for _ in range(2):
        grant = group.reserve([1, 2, 3, 4], output(9))
        assert grant is not None
        group.claim(grant)
        group.write(grant)
        group.land(grant)
    for _ in range(7):
        group.step()
    borrowed = set(group.arena.borrowed)
    assert group.scheduler.audit().borrowed_pages_used > 0
    assert isinstance(group.scheduler.request_switch(Layout.DP), SwitchDeferred)
    group.write(early)
    group.land(early)
    group.begin()
    assert group.plan is not None
    manifest = group.plan.manifest
    assert manifest is not None
    assert manifest.layout_to == Layout.DOP
    assert manifest.moves
    assert not borrowed.intersection(move.dst_slot for move in manifest.moves)
    group.end()
    group.run()
    for request in group.requests.values():
        request.check()
    group.assert_empty()


def test_landed_sequences_share_a_relocation_but_not_with_a_switch() -> None:
    group = ToyGroup(role=Role.DECODE, layout=Layout.TP, arena=arena_of(num_ranks=2, ordinary=20))
    grants = [group.reserve([1, 2, 3], output(3)) for _ in range(3)]
    for grant in grants:
        assert grant is not None
        group.claim(grant)
        group.write(grant)
    for grant in grants[:2]:
        assert grant is not None
        group.land(grant)
    group.begin()
    assert group.plan is not None
    assert group.plan.manifest is not None
    assert {move.page for move in group.plan.manifest.moves} == {0, 1, 2, 3}
    assert group.plan.num_rows == 2
    group.end()
    assert grants[2] is not None
    group.land(grants[2])
    group.scheduler.request_switch(Layout.DOP)
    group.begin()
    assert group.plan is not None
    assert group.plan.manifest is not None
    assert group.plan.manifest.layout_to == Layout.DOP
    assert group.plan.num_rows == 3
    group.end()
    group.run()
    for request in group.requests.values():
        request.check()
    group.assert_empty()


def test_two_landed_sequences_that_block_each_other_do_not_wait_forever() -> None:
    # One copy of both fits, two copies of one fit; two of both do not.
    group = ToyGroup(
        role=Role.DECODE, layout=Layout.DP, arena=arena_of(num_ranks=2, ordinary=5), admission_overcommit=2.0
    )
    grants = [group.reserve([1] * 6, output(2)) for _ in range(2)]
    group.scheduler.request_switch(Layout.TP)
    group.step()
    for grant in grants:
        assert grant is not None
        group.claim(grant)
        group.write(grant)
        group.land(grant)
    group.run()
    for request in group.requests.values():
        assert request.finished is not None
        request.check()
    group.assert_empty()


def test_audit_counts_every_slot() -> None:
    arena = arena_of(num_ranks=2, ordinary=6, borrowed=3)
    group = ToyGroup(layout=Layout.DP, arena=arena)
    group.add([1, 2, 3], output(4))
    group.step()
    audit = group.scheduler.audit()
    assert (audit.layout, audit.epoch, audit.pages_held) == (Layout.DP, 0, 2)
    assert sorted((r.slots, r.free, r.weights, r.kv, r.quarantined) for r in audit.ranks) == [
        (9, 4, 3, 2, 0),
        (9, 6, 3, 0, 0),
    ]
    group.scheduler.request_switch(Layout.TP)
    group.step()
    assert [(r.free, r.weights, r.kv) for r in group.scheduler.audit().ranks] == [(7, 0, 2)] * 2
    tokens = group.scheduler.kv_tokens()
    assert (tokens.used, tokens.total, tokens.projected) == (4, 18, 7)


def test_a_snapshot_shows_batch_queue_and_pools() -> None:
    group = ToyGroup(
        arena=arena_of(num_ranks=2, ordinary=6, borrowed=3),
        layout=Layout.DOP,
        layouts=(Layout.DOP, Layout.DP),
        chunk_tokens=4,
        max_running=2,
    )
    group.clock = 3.5
    for length in (2, 6, 5):
        group.add([1] * length, output(3))
    group.step()
    seen = group.scheduler.snapshot(queued=(WaitingSequence(prompt_tokens=9, projected_output=1),))
    assert (seen.time_s, seen.phase, seen.layout, seen.num_ranks) == (3.5, Phase.PREFILL, Layout.DOP, 2)
    assert [
        (r.context_tokens, r.step_rows, r.remaining_prompt, r.projected_output) for r in seen.running
    ] == [(2, 1, 0, 2), (2, 3, 4, 3)]
    assert [(w.prompt_tokens, w.projected_output) for w in seen.waiting] == [(5, 3), (9, 1)]
    assert group.scheduler.kv_tokens().waiting == 5
    assert seen.pools[Layout.DP] == LayoutPool(feasible=True, total_tokens=12, free_tokens=10)
    assert seen.pools[Layout.DOP].total_tokens == 18
    assert not seen.pools[Layout.TP].feasible
    assert sorted(seen.owner_tokens) == [2, 2]
    decode = ToyGroup(role=Role.DECODE).scheduler.snapshot()
    assert (decode.phase, decode.running) == (Phase.DECODE, ())


def test_integrity_is_really_checked() -> None:
    group = ToyGroup()
    seq = group.add([1, 2, 3], output(4))
    group.step()
    sequence = group.scheduler._parts.roster.get(seq)
    page = sequence.pages.pop()
    with pytest.raises(InvariantBroken, match="cached in room"):
        group.scheduler.check_integrity()
    sequence.cached = 1
    with pytest.raises(InvariantBroken, match=f"without a user.*{page}"):
        group.scheduler.check_integrity()


def test_a_plan_that_was_made_beside_a_step_is_carried_out_unless_something_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[Layout] = []

    def counting(**of: Any) -> SwitchManifest | Refusal:
        plans.append(of["layout_to"])
        return plan_switch(**of)

    monkeypatch.setattr(relocation, "plan_switch", counting)
    group = ToyGroup(layout=Layout.DP, arena=arena_of(num_ranks=2, ordinary=40))
    first, second = (group.add([number] * 9, output(9)) for number in (1, 2))
    group.step()
    group.begin()
    assert group.scheduler.request_switch(Layout.TP) is None
    group.end()
    group.begin()
    assert group.plan is not None
    assert (group.plan.layout, plans) == (Layout.TP, [Layout.TP])
    group.end()
    group.begin()
    assert group.scheduler.request_switch(Layout.DP) is None
    group.scheduler.cancel(second)
    group.end()
    group.begin()
    assert group.plan is not None
    assert (group.plan.layout, plans) == (Layout.DP, [Layout.TP, Layout.DP, Layout.DP])
    group.end()
    assert group.scheduler.copies(first)
