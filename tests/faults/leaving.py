"""Plays of clients that leave: anywhere, at a boundary, and while the writer stands still."""

import asyncio

from tests.faults.arena import mapped_arena
from tests.faults.bed import WITHIN_S, Bed
from tests.faults.moments import (
    caught_pushing,
    fill,
    lease_state,
    until_chunk,
    until_pushing,
)
from tests.faults.relay import CLAIM, COMPLETE, Held
from tests.faults.requests import Request, Wanted
from tests.faults.rows import Case


async def cancel(bed: Bed, case: Case) -> None:
    """Leave after a random part of the time that a request like it has just taken."""
    draw, loop = case.draw(), asyncio.get_running_loop()
    began = loop.time()
    await bed.serves(f"{case.name} before")
    whole_s = loop.time() - began
    stays = await bed.request(Wanted(name=f"{case.name} stays", index=draw.randrange(4), tokens=8))
    request = Request(Wanted(name=f"{case.name} leaves", index=draw.randrange(4), tokens=8))
    job = asyncio.create_task(_run(bed, request))
    await asyncio.sleep(draw.uniform(0.0, 1.5 * whole_s))
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    await request.leave()
    bed.check(stays, await asyncio.wait_for(stays.whole(), WITHIN_S))


async def _run(bed: Bed, request: Request) -> None:
    await request.reserve(bed.stubs["decode-0"])
    request.prefill(bed.stubs["prefill-0"])
    await request.whole()


async def gone(bed: Bed, case: Case) -> None:
    """Leave at a boundary that is held open until the client has gone."""
    if case.point == "queued":
        await _gone_from_the_queue(bed, case)
        return
    draw, relay = case.draw(), bed.relays["decode-0"]
    stays = await bed.request(Wanted(name=f"{case.name} stays", index=draw.randrange(4), tokens=24))
    request = await Request(Wanted(name=case.name, index=draw.randrange(4), tokens=24)).reserve(
        bed.stubs["decode-0"]
    )
    lease = request.lease.lease
    held = Held(after=case.point in ("claimed", "completed"))
    if case.point in ("claim sent", "claimed"):
        relay.when(CLAIM, lease, held)
    elif case.point in ("completion sent", "completed"):
        relay.when(COMPLETE, lease, held)
    request.prefill(bed.stubs["prefill-0"])
    if case.point == "chunk":
        await until_chunk(bed, "prefill-0", draw.randrange(1, 7))
    elif case.point == "pushing":
        await until_pushing(bed, "prefill-0", request)
    elif case.point == "token":
        await bed.until(lambda: bool(request.tokens), "the first token is told")
    else:
        await asyncio.wait_for(held.holds.wait(), WITHIN_S)
    await request.leave()
    held.release()
    bed.check(stays, await asyncio.wait_for(stays.whole(), WITHIN_S))


async def _gone_from_the_queue(bed: Bed, case: Case) -> None:
    """No page is free: who waits for some and leaves is forgotten, and the next one gets them."""
    blockers = await fill(bed, "decode-1", case.name)

    async def waits(count: int) -> bool:
        return (await bed.state("decode-1")).waiting == count

    leaver, stayer = (Request(Wanted(name=f"{case.name} {what}")) for what in ("leaves", "stays"))
    leaver.ask(bed.stubs["decode-1"])
    stayer.ask(bed.stubs["decode-1"])
    await bed.until(lambda: waits(2), "two requests wait for pages")
    await leaver.leave()
    await bed.until(lambda: waits(1), "the one that has left waits no more")
    for blocker in blockers:
        await blocker.leave()
    await stayer.leased()
    stayer.prefill(bed.stubs["prefill-0"])
    bed.check(stayer, await asyncio.wait_for(stayer.whole(), WITHIN_S))


async def slow_writer(bed: Bed, case: Case) -> None:
    """Its pages are nobody's while it may write, and no byte lands in them once they are given back."""
    wanted = Wanted(name=case.name, index=case.draw().randrange(4))
    slots = (await bed.audit("decode-1")).ranks[0].slots
    with mapped_arena(bed.leader("decode-1").children()[0].pid, slots=slots) as arena:
        async with caught_pushing(bed, wanted, decode="decode-1") as slow:
            mine = {page.slot for page in slow.lease.pages}
            await slow.leave()
            await bed.until(lambda: _quarantined(bed, slow), "the slow writer's pages are quarantined")
            others = await fill(bed, "decode-1", f"{case.name} other")
            assert mine.isdisjoint(_slots(others)), "a page is used under its writer"
            await _served(bed, others)
            assert await _quarantined(bed, slow), "nothing proves yet that the writer has stopped"
        await bed.empty("decode-1")
        arena.mark(sorted(mine))
        again: list[Request] = []
        if case.point == "used again":
            again = await fill(bed, "decode-1", f"{case.name} again")
            assert mine & _slots(again), "the group is full, and no page of the slow writer is used again"
            await _served(bed, again)
        await bed.empty("prefill-0", "decode-1")
        assert arena.touched(sorted(mine - _slots(again))) == [], "a byte came after its page was given back"


async def _quarantined(bed: Bed, request: Request) -> bool:
    return await lease_state(bed, "decode-1", request.lease.lease) == "quarantined"


def _slots(requests: list[Request]) -> set[int]:
    return {page.slot for request in requests for page in request.lease.pages}


async def _served(bed: Bed, requests: list[Request]) -> None:
    """By the healthy prefill group, into pages that they hold already."""
    for request in requests:
        request.prefill(bed.stubs["prefill-1"])
    for request in requests:
        bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))
