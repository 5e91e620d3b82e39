"""Pushes out of a group that goes on: what may leave when, what stays pinned, and switches in between."""

from itertools import permutations

import pytest

from splash_core.errors import InvariantBroken
from splash_core.ids import PageId, SeqId
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS, Layout
from splash_core.scheduling.pushes import DONE, PushBook, PushedPages
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.support.fake_ranks import digests
from tests.support.toy_group import ToyGroup, arena_of

DIRECTIONS = tuple(permutations(STANDARD_LAYOUTS, 2))
PROMPT = tuple(range(10)) * 2
ONE = SamplingParams(max_tokens=1)
KEEPS_COPIES = {
    (Layout.DP, Layout.DOP),
    (Layout.DOP, Layout.DP),
    (Layout.DP, Layout.TP),
    (Layout.DOP, Layout.TP),
    (Layout.CP, Layout.TP),
}
"""Directions in which every copy of a page stays in its slot, as long as none lies under weights."""


def prefill_group(layout: Layout = Layout.DP, **settings: object) -> ToyGroup:
    settings = {"chunk_tokens": 5, "arena": arena_of(num_ranks=2, ordinary=24), **settings}
    return ToyGroup(role=Role.PREFILL, layout=layout, **settings)  # type: ignore[arg-type]


def book(group: ToyGroup) -> PushBook:
    return group.scheduler.pushes


def begin(group: ToyGroup, seq: SeqId, first: int = 0) -> tuple[int, PushedPages]:
    outgoing = book(group).outgoing(seq)
    assert outgoing is not None
    return book(group).begin(seq, first=first, end=outgoing.pages, lease="d/1")


def check_content(group: ToyGroup, pushed: PushedPages, prompt: tuple[int, ...] = PROMPT) -> None:
    """What a push would read is the prompt's KV, on every holder."""
    chain = digests(prompt)
    size = group.arena.page_size
    for index, holders in enumerate(pushed.copies, pushed.first_index):
        first = index * size
        rows = [(first + offset, digest) for offset, digest in enumerate(chain[first : first + size])]
        for copy in holders:
            assert group.ranks.read_page(copy.rank, copy.slot)[: len(rows)] == rows


def pages_of(group: ToyGroup, seq: SeqId) -> list[PageId]:
    return group.scheduler._parts.roster.get(seq).pages


def test_whole_pages_leave_with_the_step_that_fills_them_and_the_last_one_with_the_last_chunk() -> None:
    group = prefill_group()
    seq = group.add(PROMPT[:13], ONE)
    assert book(group).outgoing(seq) is None
    seen = []
    while group.begin():
        outgoing = book(group).outgoing(seq)
        assert outgoing is not None
        assert group.plan is not None
        seen.append((outgoing.pages, group.plan.step))
        group.end()
    assert [pages for pages, _ in seen] == [2, 5, 7]
    assert group.scheduler.count(SeqState.HANDOFF) == 1
    push, pushed = book(group).begin(seq, first=3, end=7, lease="d/1")
    assert (pushed.first_index, pushed.step, len(pushed.copies)) == (3, seen[-1][1], 4)
    check_content(group, pushed, PROMPT[:13])
    book(group).end(push)
    group.scheduler.release(seq)
    group.requests[seq].released = True
    group.assert_empty()


def test_pages_that_are_not_whole_yet_cannot_be_pushed() -> None:
    group = prefill_group()
    seq = group.add(PROMPT, ONE)
    with pytest.raises(InvariantBroken, match="cannot be pushed now"):
        book(group).begin(seq, first=0, end=1, lease="d/1")
    group.begin()
    with pytest.raises(InvariantBroken, match=r"pages 0…3 of sequence"):
        book(group).begin(seq, first=0, end=3, lease="d/1")
    group.end()


def test_a_push_names_the_step_that_last_moved_its_pages() -> None:
    """Ordered after a switch was planned, it must not read where the pages will be before they are there."""
    group = prefill_group(Layout.DP)
    seq = group.add(PROMPT, ONE)
    group.step()
    assert group.scheduler.request_switch(Layout.CP) is None
    group.begin()
    assert group.plan is not None
    assert group.plan.manifest is not None
    push, pushed = book(group).begin(seq, first=0, end=2, lease="d/1")
    assert pushed.step == group.plan.step > DONE
    group.end()
    check_content(group, pushed)
    book(group).end(push)


@pytest.mark.parametrize(("layout_from", "layout_to"), DIRECTIONS)
@pytest.mark.parametrize("mode", SwitchMode)
def test_a_switch_while_pages_of_a_running_prompt_are_pushed(
    layout_from: Layout, layout_to: Layout, mode: SwitchMode
) -> None:
    """It works around them where their copies stay, else it waits, and new pushes wait for it."""
    group = prefill_group(layout_from, arena=arena_of(num_ranks=2, ordinary=48))
    seq = group.add(PROMPT * 2, ONE)
    other = group.add(PROMPT[:4], ONE)
    group.step()
    push, pushed = begin(group, seq)
    assert group.scheduler.request_switch(layout_to, mode) is None
    for _ in range(3):
        group.step()
        check_content(group, pushed, PROMPT * 2)
        if mode is not SwitchMode.PRECOPIED:
            waits = (layout_from, layout_to) not in KEEPS_COPIES and not group.switched
            assert book(group).held == waits
            assert (book(group).outgoing(seq) is None) == waits
    if (layout_from, layout_to) in KEEPS_COPIES:
        assert [event.layout_to for event in group.switched] == [layout_to]
    book(group).end(push)
    group.run()
    assert [event.layout_to for event in group.switched] == [layout_to]
    for done in (seq, other):
        assert group.requests[done].prefilled is not None
        push, pushed = begin(group, done)
        check_content(group, pushed, group.requests[done].prompt)
        book(group).end(push)
        group.scheduler.release(done)
        group.requests[done].released = True
    group.run()
    group.assert_empty()


@pytest.mark.parametrize(("layout_from", "layout_to"), DIRECTIONS)
def test_a_switch_works_around_prompts_that_are_computed_and_still_being_pushed(
    layout_from: Layout, layout_to: Layout
) -> None:
    group = prefill_group(layout_from)
    done = group.add(PROMPT[:6], ONE)
    group.run()
    push, pushed = begin(group, done)
    running = group.add(PROMPT, ONE)
    group.step()
    assert group.scheduler.request_switch(layout_to) is None
    group.step()
    assert [event.layout_to for event in group.switched] == [layout_to]
    check_content(group, pushed, PROMPT[:6])
    book(group).end(push)
    group.scheduler.release(done)
    group.requests[done].released = True
    group.run()
    assert group.requests[running].prefilled is not None


@pytest.mark.parametrize("layout_to", [Layout.DP, Layout.DOP_P])
def test_a_pushed_page_under_weights_to_come_is_waited_for(layout_to: Layout) -> None:
    """Its rank stays the same, so only its slot is in the way."""
    group = prefill_group(Layout.DOP, arena=arena_of(num_ranks=2, ordinary=4, borrowed=12), chunk_tokens=17)
    first, _, third = (group.add(PROMPT[:6], ONE) for _ in range(3))
    group.step()
    push, pushed = begin(group, third)
    lenders = {slot for matrix in RULES[layout_to].fills for slot in group.arena.lenders[matrix]}
    under = any(copy.slot in lenders for holders in pushed.copies for copy in holders)
    group.scheduler.release(first)
    group.requests[first].released = True
    assert group.scheduler.request_switch(layout_to) is None
    group.begin()
    assert book(group).held == under
    group.end()
    assert (not group.switched) == under
    check_content(group, pushed, PROMPT[:6])
    book(group).end(push)
    group.run()
    if under:  # the prompt is computed now, and its handoff keeps its pages where they are
        assert [event.retry for event in group.refused] == [True]
        group.scheduler.release(third)
        group.requests[third].released = True
        assert group.scheduler.request_switch(layout_to) is None
        group.run()
    assert [event.layout_to for event in group.switched] == [layout_to]


@pytest.mark.parametrize("when", ["cancelled", "preempted"])
def test_pages_of_a_prompt_that_goes_stay_until_their_push_is_over(when: str) -> None:
    group = prefill_group()
    seq = group.add(PROMPT, ONE)
    group.begin()
    push, pushed = begin(group, seq)
    if when == "cancelled":
        group.cancel(seq)
        group.end()
        assert book(group).outgoing(seq) is None
    else:
        group.end()
        group.scheduler._parts.residency.preempt(group.scheduler._parts.roster.get(seq))
        assert book(group).outgoing(seq) is None
    group.scheduler.check_integrity()
    assert len(book(group).left_over) == 2
    audit = group.scheduler.audit()
    assert sum(rank.quarantined for rank in audit.ranks) == 2
    group.add(PROMPT, ONE)
    group.run()
    check_content(group, pushed)
    book(group).end(push)
    assert book(group).left_over == ()
    group.scheduler.check_integrity()


def test_a_prompt_that_is_computed_again_says_so() -> None:
    group = prefill_group()
    seq = group.add(PROMPT, ONE)
    group.step()
    before = book(group).outgoing(seq)
    group.scheduler._parts.residency.preempt(group.scheduler._parts.roster.get(seq))
    group.begin()
    after = book(group).outgoing(seq)
    group.end()
    assert before is not None
    assert after is not None
    assert (before.run, before.pages, after.run, after.pages) == (1, 2, 2, 2)
    group.run()
    assert book(group).outgoing(seq) is not None
    assert book(group).outgoing(seq).run == 2  # type: ignore[union-attr]


def test_pages_that_only_a_push_keeps_count_against_admission() -> None:
    group = prefill_group(arena=arena_of(num_ranks=1, ordinary=10), chunk_tokens=20)
    seq = group.add(PROMPT[:12], ONE)
    group.step()
    push, _ = begin(group, seq)
    group.cancel(seq)
    group.add(PROMPT[:12], ONE)
    assert group.step() is None
    book(group).end(push)
    assert group.step() is not None


def test_audits_name_every_push() -> None:
    group = prefill_group()
    seq = group.add(PROMPT, ONE)
    group.step()
    group.clock = 2.0
    push, _ = begin(group, seq)
    group.clock = 5.0
    (entry,) = book(group).opened()
    assert (entry.push, entry.owner, entry.lease, entry.age_s) == (push, "r0", "d/1", 3.0)
    assert list(entry.pages) == pages_of(group, seq)[:2]
    pages = group.scheduler.audit(every_page=True).pages
    assert [page.page for page in pages] == pages_of(group, seq)
    assert [page.pushes for page in pages] == [(push,), (push,), ()]
    assert {(page.owner, page.state, page.age_s, page.writer) for page in pages} == {
        ("r0", "running", 5.0, "")
    }
    table = group.scheduler._parts.residency.table
    assert [page.slots for page in pages] == [table.row(page.page) for page in pages]
    group.cancel(seq)
    kept = group.scheduler.audit(every_page=True).pages
    assert [(page.owner, page.state, page.age_s) for page in kept] == [("r0", "quarantined", 3.0)] * 2
    book(group).end(push)
    assert group.scheduler.audit(every_page=True).pages == ()
