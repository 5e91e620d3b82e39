"""What a prefill group tells a decode group of its open handoffs, and when it may stop telling."""

import asyncio

import grpc.aio

from splash_core.pb import decode_pb2
from tests.support.contacts import ENDED, contact

SOON_S = 0.005


class Decode:
    """Keeps what it is told; may be away."""

    def __init__(self) -> None:
        self.told: list[decode_pb2.OpenHandoffs] = []
        self.away = False

    async def TellHandoffs(self, message: decode_pb2.OpenHandoffs, timeout: float) -> decode_pb2.HandoffAck:
        del timeout
        self.told.append(message)
        if self.away:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "away", ""
            )
        return decode_pb2.HandoffAck(accepted=True)

    async def until(self, count: int) -> None:
        while len(self.told) < count:
            await asyncio.sleep(0)


def test_open_handoffs_are_told_again_and_again_and_at_last_that_there_are_none() -> None:
    async def main() -> None:
        decode = Decode()
        made = contact(decode, sign_within_s=SOON_S)
        made.opened(3)
        made.opened(4)
        await decode.until(2)
        made.over(3)
        seen = len(decode.told)
        await decode.until(seen + 1)
        assert list(decode.told[0].handoffs) == [3, 4]
        assert (decode.told[0].newest, decode.told[0].writer, decode.told[0].incarnation) == (4, "w", "i")
        assert (list(decode.told[-1].handoffs), decode.told[-1].newest) == ([4], 4)
        decode.away = True
        made.over(4)
        while not made.idle:
            await asyncio.sleep(0)
        assert list(decode.told[-1].handoffs) == []
        decode.away = False
        seen = len(decode.told)
        made.opened(5)
        await decode.until(seen + 1)
        assert (list(decode.told[-1].handoffs), decode.told[-1].newest) == ([5], 5)
        await made.close()

    asyncio.run(main())


def test_who_fences_nobody_need_not_be_told() -> None:
    async def main() -> None:
        made = contact(Decode())
        made.opened(1)
        assert not made.idle
        made.over(1)
        assert made.idle
        await made.close()

    asyncio.run(main())


def test_an_end_need_not_be_told_once_its_hearer_has_ended_or_must_have_fenced_us() -> None:
    async def main() -> None:
        now = 100.0
        assert "leader of decode-0 has ended" in contact(Decode(), leader=ENDED).needless(now)
        patient = contact(Decode(), clock=lambda: now)
        fencing = contact(Decode(), sign_within_s=30.0, clock=lambda: now)
        now = 1000.0
        assert patient.needless(100.0) == ""
        assert fencing.needless(980.0) == ""
        assert "has not answered for 31 s" in fencing.needless(969.0)
        fencing.heard()
        now = 1029.0
        assert fencing.needless(969.0) == ""
        assert "30 s without any answer" in fencing.bound

    asyncio.run(main())
