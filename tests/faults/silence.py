"""Plays of a writer that vanishes without a word: its whole group stands still for longer than decode waits.

Over Mooncake the receiver fences it, and its pages are used while it stands still; over shared memory nothing
but its end would prove anything, so they wait. Either way no byte lands in pages that are somebody else's.
"""

import asyncio

from splash_core.transport.options import SHM
from tests.faults.arena import Arena, mapped_arena
from tests.faults.bed import SILENCE_S, WITHIN_S, Bed
from tests.faults.moments import caught_pushing, lease_state
from tests.faults.requests import Request, Wanted
from tests.faults.rows import Case


async def writer_silent(bed: Bed, case: Case) -> None:
    """Pages come back when all ranks have fenced the writer; running again it fails cleanly, serves on."""
    wanted = Wanted(name=case.name, index=case.draw().randrange(4))
    leaves = case.point == "its client leaves"
    slots = (await bed.audit("decode-1")).ranks[0].slots
    with mapped_arena(bed.leader("decode-1").children()[0].pid, slots=slots) as arena:
        async with (
            bed.stopped_later("prefill-0", "all") as stop,
            caught_pushing(bed, wanted, decode="decode-1") as request,
        ):
            await stop()
            if leaves:
                await request.leave()
            if bed.transport == SHM:
                await _waits_for_proof(bed, request, "quarantined" if leaves else "claimed")
            else:
                await _freed_meanwhile(bed, request, arena, leaves=leaves)
        if not leaves and bed.transport == SHM:
            await _goes_on(bed, request)
        await bed.empty("prefill-0", "decode-1")
        if bed.transport != SHM:
            assert arena.touched(_slots(request)) == [], "a byte of the fenced writer came after its fence"
    await bed.serves(f"{case.name} again", decode="decode-1")


async def _waits_for_proof(bed: Bed, request: Request, state: str) -> None:
    await asyncio.sleep(1.5 * SILENCE_S)
    assert await lease_state(bed, "decode-1", request.lease.lease) == state
    assert "proof that its processes have ended" in await _waits(bed)


async def _freed_meanwhile(bed: Bed, request: Request, arena: Arena, *, leaves: bool) -> None:
    """The writer still stands; afterwards its pages are free and marked."""
    assert f"it is fenced when silent for {SILENCE_S:g} s" in await _waits(bed)
    if not leaves:

        async def granted() -> bool:
            return await lease_state(bed, "decode-1", request.lease.lease) == "granted"

        await bed.until(granted, "the silent writer's claim is void")
        assert await request.prefill_failure(), "a call to a group that stands still ended well"
        request.prefill(bed.stubs["prefill-1"])
        bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))
    await bed.empty("decode-1", within_s=WITHIN_S)
    arena.mark(_slots(request))


async def _goes_on(bed: Bed, request: Request) -> None:
    """Nothing was taken from it: the handoff is completed, or was too late."""
    reason = await request.prefill_failure()
    if not reason:
        bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))
    await request.leave()


async def _waits(bed: Bed) -> str:
    return "; ".join(wait.waits_for for wait in (await bed.audit("decode-1")).waits)


def _slots(request: Request) -> list[int]:
    return sorted({page.slot for page in request.lease.pages})
