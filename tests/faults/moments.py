"""Moments of a handoff, seen from outside: audits, states, and stopping a rank to make a moment last."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.faults.bed import Bed
from tests.faults.relay import COMPLETE
from tests.faults.requests import NUM_PROMPTS, Request, Wanted

_TRIES = 40


async def lease_state(bed: Bed, decode: str, lease: str) -> str:
    """What the decode group says of a lease; empty once it is closed."""
    states = {entry.lease: entry.state for entry in (await bed.audit(decode)).leases}
    return states.get(lease, "")


async def pushes(bed: Bed, prefill: str, request: Request) -> int:
    """How many pushes of a request are under way."""
    audit = await bed.audit(prefill)
    return sum(push.lease == request.lease.lease for push in audit.pushes)


async def until_claimed(bed: Bed, decode: str, request: Request) -> None:
    """Wait until the writer has been accepted."""
    lease = request.lease.lease

    async def holds() -> bool:
        return await lease_state(bed, decode, lease) == "claimed"

    await bed.until(holds, f"{request.wanted.name} is claimed")


async def until_pushing(bed: Bed, prefill: str, request: Request) -> None:
    """Wait until pages of a request are on their way."""

    async def holds() -> bool:
        return await pushes(bed, prefill, request) > 0

    await bed.until(holds, f"pages of {request.wanted.name} leave")


async def until_chunk(bed: Bed, prefill: str, chunks: int) -> None:
    """Wait until a group has run some steps more."""
    begun = (await bed.state(prefill)).steps

    async def holds() -> bool:
        return (await bed.state(prefill)).steps >= begun + chunks

    await bed.until(holds, f"{prefill} runs {chunks} steps")


@contextlib.asynccontextmanager
async def caught_pushing(
    bed: Bed, wanted: Wanted, *, prefill: str = "prefill-0", decode: str = "decode-0"
) -> AsyncIterator[Request]:
    """A request whose writer stands still, for the block: a chunk half done, a push in flight.

    A rank may finish its push while it is being stopped: then it goes on, and the next push is tried.
    """
    for number in range(_TRIES):
        again = Wanted(
            name=f"{wanted.name}, try {number}",
            index=wanted.index,
            tokens=wanted.tokens,
            length=wanted.length,
        )
        request = await bed.request(again, prefill=prefill, decode=decode)
        while not request.prefilled:
            if not await pushes(bed, prefill, request):
                continue
            async with bed.stopped(prefill):
                # What ranks reported before they stood still reaches their leader meanwhile.
                await bed.state(prefill)
                await asyncio.sleep(0.01)
                half_done = await pushes(bed, prefill, request) and not request.prefilled
                claimed = await lease_state(bed, decode, request.lease.lease) == "claimed"
                if half_done and claimed and not bed.relays[decode].about(COMPLETE, request.lease.lease):
                    yield request
                    return
        await request.leave()
    raise AssertionError(f"no push of {wanted.name} was seen in flight in {_TRIES} requests")


async def fill(bed: Bed, decode: str, name: str) -> list[Request]:
    """Requests that hold pages, so many that one more has to wait for some."""
    full: list[Request] = []
    while True:
        request = Request(Wanted(name=f"{name} {len(full)}", index=len(full) % NUM_PROMPTS))
        request.ask(bed.stubs[decode])
        lease = asyncio.ensure_future(request.leased())

        async def decided(lease: "asyncio.Future[None]" = lease) -> bool:
            return lease.done() or (await bed.state(decode)).waiting > 0

        await bed.until(decided, f"{request.wanted.name} has pages, or waits")
        if not lease.done():
            lease.cancel()
            await request.leave()
            await bed.until(lambda: _waits(bed, decode, 0), "nobody waits")
            return full
        full.append(request)


async def _waits(bed: Bed, decode: str, count: int) -> bool:
    return (await bed.state(decode)).waiting == count
