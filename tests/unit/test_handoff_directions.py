"""A handoff between groups of different size, one of which switches between reservation and completion."""

from itertools import permutations, product

import pytest

from splash_core.ids import SeqId
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.scheduling.leases import Grant
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.spec.request import SamplingParams
from splash_core.switch.handoff import plan_handoff
from splash_core.switch.manifest import Primitive, SwitchManifest
from tests.support.toy_group import ToyGroup, arena_of

DIRECTIONS = tuple(permutations(STANDARD_LAYOUTS, 2))
PAIRS = tuple(product(STANDARD_LAYOUTS, STANDARD_LAYOUTS))
PROMPT = tuple(range(11))
SAMPLING = SamplingParams(max_tokens=5)
SIZES = (2, 3)


def prefill_group(layout: Layout, num_ranks: int = SIZES[0]) -> ToyGroup:
    arena = arena_of(num_ranks=num_ranks, ordinary=20, borrowed=4)
    return ToyGroup(role=Role.PREFILL, layout=layout, arena=arena, chunk_tokens=4)


def decode_group(layout: Layout, num_ranks: int = SIZES[1]) -> ToyGroup:
    arena = arena_of(num_ranks=num_ranks, ordinary=20, borrowed=4)
    return ToyGroup(role=Role.DECODE, layout=layout, arena=arena)


def lease(decode: ToyGroup) -> Grant:
    grant = decode.reserve(PROMPT, SAMPLING)
    assert grant is not None
    decode.claim(grant)
    return grant


def push(prefill: ToyGroup, seq: SeqId, decode: ToyGroup, grant: Grant, *, first: int = 0) -> int:
    """Order and carry out a push of all that is whole; returns how many pages crossed."""
    book = prefill.scheduler.pushes
    outgoing = book.outgoing(seq)
    assert outgoing is not None
    number, pages = book.begin(seq, first=first, end=outgoing.pages, lease=grant.lease)
    writes = plan_handoff(pages.copies, grant.pages, first_index=first)
    for write in writes:
        decode.ranks.copy_page(prefill.ranks, write.src, write.src_slot, write.dst, write.dst_slot)
    book.end(number)
    return len(writes)


def finish(decode: ToyGroup, grant: Grant) -> list[SwitchManifest]:
    """Land and run to the end; the manifests that the decode group carried out for it."""
    before = len(decode.plans)
    decode.land(grant)
    decode.run()
    request = decode.requests[grant.seq]
    request.check()
    assert request.finished is not None
    return [plan.manifest for plan in decode.plans[before:] if plan.manifest is not None]


@pytest.mark.parametrize(("layout_from", "layout_to"), DIRECTIONS)
def test_decode_switches_between_reservation_and_completion(layout_from: Layout, layout_to: Layout) -> None:
    """The lease keeps its placement; its pages go where the new layout wants them after the completion."""
    prefill, decode = prefill_group(Layout.DP), decode_group(layout_from)
    grant = lease(decode)
    table = decode.scheduler._parts.residency.table
    pages = decode.scheduler._parts.roster.get(grant.seq).pages
    rows = [table.row(page) for page in pages]
    seq = prefill.add(PROMPT, SAMPLING)
    prefill.step()
    crossed = push(prefill, seq, decode, grant)
    assert decode.scheduler.request_switch(layout_to) is None
    decode.step()
    assert [event.layout_to for event in decode.switched] == [layout_to]
    assert [table.row(page) for page in pages] == rows
    assert decode.scheduler.count(SeqState.LEASED) == 1
    prefill.run()
    crossed += push(prefill, seq, decode, grant, first=crossed)
    assert crossed == len(grant.pages) == 6
    finish(decode, grant)
    decode.assert_empty()


@pytest.mark.parametrize(("layout_from", "layout_to"), DIRECTIONS)
def test_prefill_switches_between_two_pushes(layout_from: Layout, layout_to: Layout) -> None:
    prefill, decode = prefill_group(layout_from), decode_group(Layout.DP)
    grant = lease(decode)
    seq = prefill.add(PROMPT, SAMPLING)
    prefill.step()
    crossed = push(prefill, seq, decode, grant)
    assert prefill.scheduler.request_switch(layout_to) is None
    prefill.run()
    assert [event.layout_to for event in prefill.switched] == [layout_to]
    crossed += push(prefill, seq, decode, grant, first=crossed)
    assert crossed == len(grant.pages)
    finish(decode, grant)
    decode.assert_empty()


@pytest.mark.parametrize(("layout_prefill", "layout_decode"), PAIRS)
@pytest.mark.parametrize("sizes", [SIZES, SIZES[::-1], (1, 3), (3, 1)])
def test_exactly_one_copy_of_each_page_crosses(
    layout_prefill: Layout, layout_decode: Layout, sizes: tuple[int, int]
) -> None:
    """Also into a layout that wants every page on every rank: the group's own all-gather makes the rest."""
    prefill, decode = prefill_group(layout_prefill, sizes[0]), decode_group(layout_decode, sizes[1])
    grant = lease(decode)
    assert [page.index for page in grant.pages] == list(range(6))
    seq = prefill.add(PROMPT, SAMPLING)
    prefill.run()
    assert push(prefill, seq, decode, grant) == 6
    manifests = finish(decode, grant)
    if layout_decode is Layout.TP and sizes[1] > 1:
        (manifest,) = manifests
        assert manifest.kv is Primitive.ALL_GATHER
        assert manifest.layout_from == manifest.layout_to == layout_decode
        # Each rank gets what it has not: all but what landed on it, and maybe the page held to grow.
        received = [sum(move.dst == rank for move in manifest.moves) for rank in range(sizes[1])]
        landed = [sum(page.rank == rank for page in grant.pages) for rank in range(sizes[1])]
        assert all(have + get in (6, 7) for have, get in zip(landed, received, strict=True))
    else:
        assert manifests == []
    decode.assert_empty()
