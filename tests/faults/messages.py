"""Plays of what is said twice, late, or in another order."""

import asyncio

from splash_core.pb import decode_pb2
from tests.faults.bed import WITHIN_S, Bed
from tests.faults.moments import until_claimed
from tests.faults.relay import ABANDON, CLAIM, COMPLETE, Held, Said, Unanswered
from tests.faults.requests import Request, Wanted
from tests.faults.rows import Case

_KINDS = {"claim twice": CLAIM, "completion twice": COMPLETE, "abandon twice": ABANDON}


async def messages(bed: Bed, case: Case) -> None:
    """Whatever order messages come in, pages belong to whom they were promised, and to nobody in the end."""
    draw = case.draw()
    request = await Request(Wanted(name=case.name, index=draw.randrange(4), tokens=8)).reserve(
        bed.stubs["decode-0"]
    )
    if case.point in _KINDS:
        await _twice(bed, request, _KINDS[case.point])
    elif case.point == "late completion":
        await _late_completion(bed, request)
    elif case.point == "claim behind its abandon":
        await _claim_behind_its_abandon(bed, request)
    elif case.point == "completion unanswered":
        await _completion_unanswered(bed, request)
    else:
        await _late(bed, case, request, CLAIM if case.point == "late claim" else ABANDON)


async def _twice(bed: Bed, request: Request, kind: str) -> None:
    """At the same time and once more after the end: the same answer, or a refusal, and no other effect."""
    relay, lease = bed.relays["decode-0"], request.lease.lease
    answers: list[decode_pb2.HandoffAck] = []

    async def twice(said: Said) -> decode_pb2.HandoffAck:
        both = await asyncio.gather(said.deliver(), said.deliver())
        answers.extend(both)
        return both[1]

    relay.when(kind, lease, twice)
    if kind == ABANDON:
        relay.when(COMPLETE, lease, Held())
    request.prefill(bed.stubs["prefill-0"])
    if kind == ABANDON:
        await until_claimed(bed, "decode-0", request)
        await request.leave()
        await bed.until(lambda: bool(answers), "the writer has abandoned")
    else:
        bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))
    assert [answer.accepted for answer in answers] == [True, True]
    after = await relay.about(kind, lease)[0].deliver()
    assert after.accepted == (kind != CLAIM), after.reason


async def _late(bed: Bed, case: Case, request: Request, kind: str) -> None:
    """A copy that comes when its pages are another's already."""
    relay, lease = bed.relays["decode-0"], request.lease.lease
    relay.when(COMPLETE, lease, Held())
    request.prefill(bed.stubs["prefill-0"])
    await until_claimed(bed, "decode-0", request)
    await request.leave()
    await bed.empty("decode-0")
    said = relay.about(kind, lease)
    assert said
    other = await Request(Wanted(name=f"{case.name} other", index=1, tokens=8)).reserve(bed.stubs["decode-0"])
    held = Held()
    relay.when(COMPLETE, other.lease.lease, held)
    other.prefill(bed.stubs["prefill-0"])
    await asyncio.wait_for(held.holds.wait(), WITHIN_S)
    ack = await said[0].deliver()
    assert kind == ABANDON or not ack.accepted, "a lease that has ended was claimed"
    held.release()
    bed.check(other, await asyncio.wait_for(other.whole(), WITHIN_S))


async def _late_completion(bed: Bed, request: Request) -> None:
    """It arrives after its writer has given the handoff up."""
    relay, lease = bed.relays["decode-0"], request.lease.lease
    held = Held()
    relay.when(COMPLETE, lease, held)
    request.prefill(bed.stubs["prefill-0"])
    await asyncio.wait_for(held.holds.wait(), WITHIN_S)
    await request.leave()
    await bed.empty("decode-0", "prefill-0")
    ack = await relay.about(COMPLETE, lease)[0].deliver()
    assert not ack.accepted
    assert lease in ack.reason


async def _claim_behind_its_abandon(bed: Bed, request: Request) -> None:
    """The writer gave up before its claim arrived: the claim is void, and the next writer's is not."""
    relay, lease = bed.relays["decode-0"], request.lease.lease

    async def lost(said: Said) -> decode_pb2.HandoffAck:
        raise Unanswered(f"the claim of {said.message.lease} is on its way")

    relay.when(CLAIM, lease, lost)
    request.prefill(bed.stubs["prefill-0"])
    assert await request.prefill_failure()
    await bed.until(lambda: relay.answered(ABANDON, lease), "the writer has abandoned")
    relay.forget_acts()
    late = await relay.about(CLAIM, lease)[0].deliver()
    assert not late.accepted, "a writer that has given up may write"
    request.prefill(bed.stubs["prefill-1"])
    bed.check(request, await asyncio.wait_for(request.whole(), WITHIN_S))


async def _completion_unanswered(bed: Bed, request: Request) -> None:
    """Decode has taken over, and prefill does not know: tokens are right, or the client hears of it."""
    relay, lease = bed.relays["decode-0"], request.lease.lease

    async def unheard(said: Said) -> decode_pb2.HandoffAck:
        await said.deliver()
        raise Unanswered("the answer is lost")

    relay.when(COMPLETE, lease, unheard)
    request.prefill(bed.stubs["prefill-0"])
    assert await request.prefill_failure()
    assert await request.decode_failure() == ""
    bed.check(request, request.tokens)
    await until_abandoned(bed, lease)


async def until_abandoned(bed: Bed, lease: str) -> None:
    """Wait until a writer has said that it writes no more."""
    relay = bed.relays["decode-0"]
    await bed.until(lambda: relay.answered(ABANDON, lease), "the writer has abandoned")
