"""Plays of groups that die or stand still: the others go on, and what was held comes back."""

import asyncio

from tests.faults.bed import WITHIN_S, Bed
from tests.faults.moments import caught_pushing, lease_state, until_chunk, until_claimed
from tests.faults.relay import COMPLETE, Held
from tests.faults.requests import Request, Wanted
from tests.faults.rows import Case


async def writer_killed(bed: Bed, case: Case) -> None:
    """The decode group has its pages back once the writer is proven dead; another may then fill them."""
    draw = case.draw()
    whom, when = case.point.split(", ")
    stays = await bed.request(Wanted(name=f"{case.name} stays", index=draw.randrange(4), tokens=40))
    wanted = Wanted(name=case.name, index=draw.randrange(4))
    if when == "pushing":
        async with caught_pushing(bed, wanted, prefill="prefill-1", decode="decode-0") as request:
            await bed.killed("prefill-1", whom)
    else:
        request = await Request(wanted).reserve(bed.stubs["decode-0"])
        # However late the blow comes, the handoff is not complete.
        bed.relays["decode-0"].when(COMPLETE, request.lease.lease, Held())
        request.prefill(bed.stubs["prefill-1"])
        if when == "claimed":
            await until_claimed(bed, "decode-0", request)
        elif when == "chunk":
            await until_chunk(bed, "prefill-1", draw.randrange(1, 6))
        await bed.killed("prefill-1", whom)
    bed.launch("prefill-1")
    assert await request.prefill_failure(), "a dead group's call ended well"
    assert request.tokens == [], "tokens of a prompt that was never handed over"

    await bed.until(lambda: _granted(bed, "decode-0", request), "the dead writer's claim is void")
    bed.relays["decode-0"].forget_acts()
    if draw.random() < 0.5:
        request.prefill(bed.stubs["prefill-0"])
        bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))
    else:
        await request.leave()
    bed.check(stays, await asyncio.wait_for(stays.whole(), WITHIN_S))


async def reader_killed(bed: Bed, case: Case) -> None:
    """The prefill group has its pages back, says why the handoff failed, and serves others meanwhile."""
    draw = case.draw()
    await bed.serves(f"{case.name} before", decode="decode-1")
    stays = await Request(Wanted(name=f"{case.name} stays", index=draw.randrange(4))).reserve(
        bed.stubs["decode-0"]
    )
    async with caught_pushing(
        bed, Wanted(name=case.name, index=draw.randrange(4)), decode="decode-1"
    ) as request:
        await bed.killed("decode-1", case.point)
        bed.launch("decode-1")
    stays.prefill(bed.stubs["prefill-0"])
    assert await request.prefill_failure(), "a handoff to a dead group ended well"
    assert await request.decode_failure(), "a dead group's call ended well"
    assert request.tokens == []
    bed.check(stays, await asyncio.wait_for(stays.whole(), WITHIN_S))
    await bed.empty("prefill-0", "decode-0")


async def stopped_first(bed: Bed, case: Case) -> None:
    """A group that never answered is no reason to keep anything, and none for others to fail."""
    draw = case.draw()
    if "decode-1" not in bed.fresh:
        await bed.killed("decode-1", "leader")
        bed.launch("decode-1")
        await bed.ready("decode-1")
    request = await Request(Wanted(name=case.name, index=draw.randrange(4))).reserve(bed.stubs["decode-1"])
    async with bed.stopped("decode-1"):
        request.prefill(bed.stubs["prefill-0"])
        await bed.serves(f"{case.name} meanwhile")
        if case.point == "until the call ends":
            assert await request.prefill_failure(), "a handoff to a silent group ended well"
            await bed.empty("prefill-0", "decode-0")
            assert request.tokens == []
            await bed.until(lambda: _granted(bed, "decode-1", request), "the lease is given back")
    if case.point == "until the call ends":
        await bed.until(lambda: _again(bed, request), "the group that goes on is written to")
    else:
        reason = await request.prefill_failure()
        if reason:
            await bed.until(lambda: _again(bed, request), "the group that goes on is written to")
    bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))
    bed.fresh.discard("decode-1")


async def _granted(bed: Bed, decode: str, request: Request) -> bool:
    return await lease_state(bed, decode, request.lease.lease) == "granted"


async def _again(bed: Bed, request: Request) -> bool:
    """Another try of prefill; a silent peer may still be left in peace for a moment."""
    request.prefill(bed.stubs["prefill-0"])
    return not await request.prefill_failure()


async def stopped(bed: Bed, case: Case) -> None:
    """Pages wait until the group goes on; others do not; then the request goes on or is over."""
    draw = case.draw()
    whom, _, leaves = case.point.partition(", ")
    async with bed.stopped_later("decode-1", whom) as stop:
        async with caught_pushing(
            bed, Wanted(name=case.name, index=draw.randrange(4)), decode="decode-1"
        ) as request:
            await stop()
        if leaves:
            await request.leave()
        await bed.serves(f"{case.name} meanwhile")
        await bed.serves(f"{case.name} and from the other", prefill="prefill-1")
    if leaves:
        return
    reason = await request.prefill_failure()
    if not reason:
        bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))
    else:
        assert request.tokens == [], f"tokens after {reason}"
        await request.leave()
