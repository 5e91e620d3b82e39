"""Leases of a decode group: reservation, the fence around writers, landing, and every way out."""

from dataclasses import replace

import pytest

from splash_core.errors import Conflict, InvalidRequest
from splash_core.ids import Incarnation, LeaseId, RankId
from splash_core.layout.layout import RULES, Layout
from splash_core.scheduling.events import FinishedEvent, FinishReason, TokenEvent
from splash_core.scheduling.leases import LeaseState
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.scheduling.step import TokenLogprobs
from splash_core.scheduling.writers import handoff_writer
from splash_core.scheduling.written import Written
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import Primitive
from tests.support.fake_ranks import digests, expected_output, token_after
from tests.support.toy_group import INCARNATION, ToyGroup, arena_of

WRITER = {"attempt": 1, "incarnation": INCARNATION, "writer": "writer"}


def decode_group(layout: Layout = Layout.DP, **more: object) -> ToyGroup:
    more.setdefault("arena", arena_of(num_ranks=2, ordinary=8, borrowed=4))
    return ToyGroup(role=Role.DECODE, layout=layout, **more)  # type: ignore[arg-type]


def output(count: int, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=count, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", list(Layout))
def test_a_landed_prompt_goes_on_where_prefill_stopped(layout: Layout) -> None:
    group = decode_group(layout)
    prompt = [1, 2, 3, 4, 5]
    grant = group.reserve(prompt, output(4))
    assert grant is not None
    assert [page.index for page in grant.pages] == [0, 1, 2]
    assert all(page.slot in group.arena.ordinary for page in grant.pages)
    assert group.step() is None
    group.claim(grant)
    group.write(grant)
    group.land(grant)
    assert group.requests[grant.seq].told == expected_output(prompt, output(4))[0][:1]
    group.run()
    (new,) = group.plans[0].started
    assert (new.tokens, new.num_prompt) == ((*prompt, group.requests[grant.seq].told[0]), 5)
    assert group.requests[grant.seq].finished is not None
    group.requests[grant.seq].check()
    group.assert_empty()


def test_into_a_replicated_layout_one_copy_lands_and_the_group_gathers_the_rest() -> None:
    group = decode_group(Layout.TP)
    grant = group.reserve([1, 2, 3, 4, 5], output(2))
    assert grant is not None
    assert sorted(page.rank for page in grant.pages) in ([0, 0, 1], [0, 1, 1])
    group.claim(grant)
    group.write(grant)
    group.land(grant)
    group.begin()
    assert group.plan is not None
    manifest = group.plan.manifest
    assert manifest is not None
    assert (manifest.kv, manifest.weights) == (Primitive.ALL_GATHER, Primitive.KEEP)
    assert manifest.layout_from == manifest.layout_to == Layout.TP
    assert group.plan.epoch == 0
    assert group.plan.num_rows == 1
    assert [type(event) for event in group.end()] == [TokenEvent, FinishedEvent]
    assert group.switched == []


def test_a_page_that_only_the_first_row_needs_is_held_but_not_granted() -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3, 4], output(2))
    assert grant is not None
    assert len(grant.pages) == 2
    assert group.scheduler.audit().pages_held == 3
    assert decode_group().reserve([1, 2, 3], output(2)) is not None


def test_the_first_token_may_be_the_last() -> None:
    prompt = [1, 2, 3]
    first = token_after(digests(prompt)[-1])
    group = decode_group()
    by_length = group.reserve(prompt, output(1))
    by_stop = group.reserve(prompt, output(5, stop_token_ids=(first,)))
    assert by_length is not None
    assert by_stop is not None
    for grant in (by_length, by_stop):
        group.claim(grant)
        group.land(grant)
    ends = [group.requests[grant.seq].finished for grant in (by_length, by_stop)]
    assert [(end.reason, end.stop_token) for end in ends if end] == [
        (FinishReason.LENGTH, None),
        (FinishReason.STOP, first),
    ]
    assert [group.requests[grant.seq].told for grant in (by_length, by_stop)] == [[first], []]
    assert group.step() is None
    group.assert_empty()


def test_first_logprobs_are_told_with_the_first_token() -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2, logprobs=0))
    assert grant is not None
    group.claim(grant)
    scored = TokenLogprobs(token=4, logprob=-0.5)
    (event,) = group.scheduler.landed(group.completion(grant), first_logprobs=scored)
    assert isinstance(event, TokenEvent)
    assert (event.index, event.logprobs) == (0, scored)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attempt", 2),
        ("incarnation", "another-life"),
        ("writer", "somebody"),
        ("num_tokens", 4),
        ("checksum", "0"),
    ],
)
def test_a_completion_that_differs_is_refused_by_name_and_changes_nothing(name: str, value: object) -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    group.claim(grant)
    with pytest.raises(Conflict, match=f"^{name}: lease"):
        group.scheduler.landed(group.completion(grant, **{name: value}))
    assert group.scheduler.count(SeqState.LEASED) == 1
    group.land(grant)
    with pytest.raises(Conflict, match=f"^{name}: lease"):
        group.scheduler.landed(group.completion(grant, **{name: value}))


def test_a_repeated_completion_has_no_effect_even_after_the_end() -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    group.claim(grant)
    group.write(grant)
    assert len(group.scheduler.landed(group.completion(grant))) == 1
    assert group.scheduler.landed(group.completion(grant)) == ()
    group.requests[grant.seq].told.append(token_after(digests([1, 2, 3])[-1]))
    group.run()
    assert group.scheduler.landed(group.completion(grant)) == ()
    with pytest.raises(Conflict, match="first_token"):
        group.scheduler.landed(group.completion(grant, first_token=10))
    group.assert_empty()


def test_only_a_claimed_lease_can_complete() -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    with pytest.raises(Conflict, match="not claimed"):
        group.land(grant)
    with pytest.raises(Conflict, match="never granted"):
        group.scheduler.claim(LeaseId("x"), attempt=1, incarnation=INCARNATION, writer="writer")


def test_a_lease_has_one_writer_at_a_time() -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    group.claim(grant)
    group.claim(grant)
    with pytest.raises(Conflict, match="claimed by 'writer'"):
        group.claim(grant, "second")
    group.scheduler.abandon(grant.lease, **WRITER)
    group.claim(grant, "second")
    group.scheduler.abandon(grant.lease, **WRITER)
    group.land(grant, "second")
    assert group.requests[grant.seq].told


def test_a_cancel_before_the_claim_frees_at_once_and_ends_the_lease() -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    group.cancel(grant.seq)
    group.cancel(grant.seq)
    group.assert_empty()
    with pytest.raises(Conflict, match="has ended"):
        group.claim(grant)


@pytest.mark.parametrize("proof", ["abandon", "complete", "gone"])
def test_a_cancel_under_a_writer_quarantines_until_the_writer_is_done(proof: str) -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    group.claim(grant)
    group.cancel(grant.seq)
    group.clock = 5.0
    audit = group.scheduler.audit()
    owner = grant.pages[0].rank
    assert audit.pages_held == 2
    assert [(rank.kv, rank.quarantined) for rank in audit.ranks] == [
        (0, 2) if rank == owner else (0, 0) for rank in range(2)
    ]
    (lease,) = audit.leases
    assert (lease.state, lease.owner, lease.writer, lease.pages, lease.age_s) == (
        LeaseState.QUARANTINED,
        "r0",
        "writer",
        2,
        5.0,
    )
    with pytest.raises(Conflict, match="must not be written"):
        group.claim(grant)
    if proof == "abandon":
        group.scheduler.abandon(grant.lease, **WRITER)
    elif proof == "gone":
        assert group.scheduler.writer_gone("writer") == (grant.lease,)
        assert group.scheduler.writer_gone("writer") == ()
    else:
        with pytest.raises(Conflict, match="was cancelled"):
            group.land(grant)
    group.scheduler.abandon(grant.lease, **WRITER)
    group.assert_empty()


def test_a_dead_writer_leaves_the_lease_to_another() -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    group.claim(grant)
    assert group.scheduler.writer_gone("writer") == (grant.lease,)
    group.claim(grant, "second")
    group.write(grant)
    group.land(grant, "second")
    group.run()
    group.requests[grant.seq].check()
    group.assert_empty()


def test_admission_counts_projected_growth_of_everything_admitted() -> None:
    group = decode_group(arena=arena_of(num_ranks=1, ordinary=8))
    # 3 + 7 tokens are five pages of eight; only two are allocated.
    assert group.reserve([1, 2, 3], output(7)) is not None
    assert group.scheduler.audit().ranks[0].free == 6
    assert group.reserve([1, 2, 3], output(4)) is None
    assert group.reserve([1, 2, 3], output(3)) is not None
    assert group.scheduler.kv_tokens().projected == 16
    lavish = decode_group(arena=arena_of(num_ranks=1, ordinary=8), admission_overcommit=2.0)
    assert lavish.reserve([1, 2, 3], output(7)) is not None
    assert lavish.reserve([1, 2, 3], output(7)) is not None


def test_growth_is_projected_under_the_present_layout() -> None:
    arena = arena_of(num_ranks=2, ordinary=4)
    spread_out, everywhere = decode_group(Layout.DP, arena=arena), decode_group(Layout.TP, arena=arena)
    granted = {
        group.scheduler.layout: sum(group.reserve([1, 2, 3], output(5)) is not None for _ in range(4))
        for group in (spread_out, everywhere)
    }
    assert granted == {Layout.DP: 2, Layout.TP: 1}


def test_leases_go_to_the_owner_with_room() -> None:
    group = decode_group()
    grants = [group.reserve([1, 2, 3], output(5)) for _ in range(4)]
    owners = [grant.pages[0].rank for grant in grants if grant is not None]
    assert sorted(owners) == [RankId(0), RankId(0), RankId(1), RankId(1)]


def test_preempted_sequences_come_before_new_leases() -> None:
    group = decode_group(arena=arena_of(num_ranks=1, ordinary=5), admission_overcommit=9.0)
    for _ in range(2):
        grant = group.reserve([1, 2], output(8))
        assert grant is not None
        group.claim(grant)
        group.write(grant)
        group.land(grant)
    while group.scheduler.count(SeqState.WAITING) == 0:
        assert group.step() is not None
    assert group.scheduler.count(SeqState.RUNNING) == 1
    assert group.reserve([1], output(1)) is None
    group.run()
    for request in group.requests.values():
        assert request.finished is not None
        request.check()
    group.assert_empty()


def test_no_lease_while_ranks_still_read_what_a_manifest_vacates() -> None:
    group = decode_group(Layout.TP, arena=arena_of(num_ranks=2, ordinary=6))
    grant = group.reserve([1, 2, 3, 4, 5, 6], output(3))
    assert grant is not None
    group.claim(grant)
    group.write(grant)
    group.land(grant)
    group.step()
    group.scheduler.request_switch(Layout.CP)
    group.begin()
    assert group.plan is not None
    assert group.plan.manifest is not None
    assert any(group.plan.manifest.released)
    # Three slots are free beside it on one rank and four on the other, but for what it vacates.
    assert group.reserve([1, 2, 3, 4, 5, 6, 7, 8, 9], output(1)) is None
    group.end()
    assert group.reserve([1], output(1)) is not None


def test_a_decode_group_is_not_a_prefill_group() -> None:
    group = decode_group()
    with pytest.raises(InvalidRequest, match="reserve"):
        group.add([1], output(1))
    with pytest.raises(InvalidRequest, match="add"):
        ToyGroup().reserve([1], output(1))
    with pytest.raises(InvalidRequest, match="max_tokens"):
        group.reserve([1], output(0))


@pytest.mark.parametrize("layout", [Layout.DOP, Layout.TP, Layout.DOP_P])
def test_running_pages_make_way_for_a_landing_where_borrowed_slots_are_free(layout: Layout) -> None:
    group = decode_group(
        layout, arena=arena_of(num_ranks=2, ordinary=6, borrowed=12), layouts=(layout, Layout.DP)
    )
    grants = []
    while (grant := group.reserve([1, 2, 3, 4, 5], output(5))) is not None:
        grants.append(grant)
        group.claim(grant)
        group.write(grant)
        group.land(grant)
        group.step()
    # Ordinary slots are short now; the next step empties some, and the request that waits gets them.
    assert group.reserve([1, 2, 3, 4, 5], output(5)) is None
    group.begin()
    assert group.plan is not None
    manifest = group.plan.manifest
    assert manifest is not None
    assert manifest.layout_from == manifest.layout_to == layout
    lent = {slot for matrix in RULES[layout].lends for slot in group.arena.lenders[matrix]}
    assert all(move.src == move.dst and move.dst_slot in lent for move in manifest.moves)
    group.end()
    late = group.reserve([1, 2, 3, 4, 5], output(5))
    assert late is not None
    group.claim(late)
    group.write(late)
    group.land(late)
    group.run()
    for request in group.requests.values():
        assert request.finished is not None
        request.check()
    assert group.scheduler.audit().borrowed_pages_used > 0
    group.assert_empty()


def test_nothing_makes_way_where_weights_are_replicated() -> None:
    group = decode_group(Layout.DP, arena=arena_of(num_ranks=2, ordinary=6, borrowed=6))
    grants = [group.reserve([1, 2, 3, 4, 5], output(5)) for _ in range(2)]
    for grant in grants:
        assert grant is not None
        group.claim(grant)
        group.write(grant)
        group.land(grant)
    group.step()
    assert group.reserve([1, 2, 3, 4, 5], output(5)) is None
    group.begin()
    assert group.plan is not None
    assert group.plan.manifest is None


def test_audits_name_owner_lease_and_writer_of_every_page() -> None:
    group = decode_group()
    group.clock = 1.0
    first, second = group.reserve([1, 2, 3], output(2)), group.reserve([4, 5], output(2))
    assert first is not None
    assert second is not None
    group.claim(first)
    group.clock = 4.0
    pages = group.scheduler.audit(every_page=True).pages
    assert {(page.owner, page.state, page.lease, page.writer, page.age_s) for page in pages} == {
        ("r0", "leased", first.lease, "writer", 3.0),
        ("r1", "leased", second.lease, "", 3.0),
    }
    group.cancel(first.seq)
    group.cancel(second.seq)
    kept = group.scheduler.audit(every_page=True).pages
    assert {(page.owner, page.state, page.lease, page.writer) for page in kept} == {
        ("r0", "quarantined", first.lease, "writer")
    }
    assert len(kept) == group.scheduler.audit().pages_held > 0


def test_a_writer_that_writes_anew_claims_the_next_attempt() -> None:
    """What is said of the attempt before is refused from then on, and no other writer may do so."""
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    keys = {"incarnation": grant.incarnation, "writer": "writer"}
    with pytest.raises(Conflict, match=r"^attempt"):
        group.scheduler.claim(grant.lease, attempt=2, **keys)  # nobody has begun
    group.claim(grant)
    with pytest.raises(Conflict, match=r"^attempt"):
        group.scheduler.claim(grant.lease, attempt=3, **keys)
    with pytest.raises(Conflict, match=r"^attempt"):
        group.scheduler.claim(grant.lease, attempt=2, incarnation=grant.incarnation, writer="second")
    group.scheduler.claim(grant.lease, attempt=2, **keys)
    group.scheduler.claim(grant.lease, attempt=2, **keys)
    with pytest.raises(Conflict, match=r"^attempt"):
        group.claim(grant)
    with pytest.raises(Conflict, match=r"^attempt"):
        group.land(grant)
    with pytest.raises(Conflict, match=r"^attempt"):
        group.scheduler.abandon(grant.lease, attempt=1, **keys)
    group.write(grant)
    group.take(group.scheduler.landed(group.completion(grant, attempt=2)))
    group.run()
    group.requests[grant.seq].check()
    group.assert_empty()


@pytest.mark.parametrize("lacks", ["pages", "layers", "num_bytes"])
def test_a_completion_that_counts_less_than_everything_is_refused(lacks: str) -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    group.claim(grant)
    whole = Written.whole(len(grant.pages), group.arena)
    less = replace(whole, **{lacks: getattr(whole, lacks) - 1})
    with pytest.raises(Conflict, match=r"^written: lease"):
        group.scheduler.landed(group.completion(grant, written=less))
    with pytest.raises(Conflict, match=r"^first_position: lease"):
        group.scheduler.landed(group.completion(grant, first_position=2))
    assert group.scheduler.count(SeqState.LEASED) == 1
    group.land(grant)


def test_an_abandon_may_name_an_attempt_whose_claim_never_arrived() -> None:
    """Else its pages would be quarantined for good: the writer has nothing more to say."""
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    group.claim(grant)
    group.cancel(grant.seq)
    keys = {"incarnation": grant.incarnation, "writer": "writer"}
    with pytest.raises(Conflict, match=r"^attempt"):
        group.scheduler.abandon(grant.lease, attempt=0, **keys)
    group.scheduler.abandon(grant.lease, attempt=2, **keys)
    group.assert_empty()


def test_a_claim_that_its_abandon_has_overtaken_holds_nothing() -> None:
    """Messages of one handoff may arrive in any order; another handoff of the group is another writer."""
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    first, second = handoff_writer("prefill", 1), handoff_writer("prefill", 2)
    group.scheduler.abandon(grant.lease, attempt=1, incarnation=INCARNATION, writer=first)
    with pytest.raises(Conflict, match="was abandoned by 'prefill/1' already"):
        group.claim(grant, first)
    group.claim(grant, second)
    group.scheduler.abandon(grant.lease, attempt=1, incarnation=INCARNATION, writer=first)
    assert [lease.state for lease in group.scheduler.audit().leases] == [LeaseState.CLAIMED]
    with pytest.raises(Conflict, match="writer: lease"):
        group.land(grant, first)
    group.write(grant)
    group.land(grant, second)
    group.run()
    group.assert_empty()


def test_the_abandon_of_another_incarnation_bars_nobody() -> None:
    group = decode_group()
    grant = group.reserve([1, 2, 3], output(2))
    assert grant is not None
    group.scheduler.abandon(grant.lease, attempt=1, incarnation=Incarnation("another"), writer="writer")
    group.claim(grant)
    group.scheduler.abandon(grant.lease, **WRITER)


def test_a_dead_group_leaves_the_leases_of_all_its_handoffs() -> None:
    group = decode_group()
    grants = [group.reserve([1, 2, 3], output(2)) for _ in range(2)]
    for number, grant in enumerate(grants):
        assert grant is not None
        group.claim(grant, handoff_writer("prefill", number))
    assert group.scheduler.writer_gone("prefil") == ()
    assert group.scheduler.writer_gone("prefill") == tuple(grant.lease for grant in grants if grant)
