"""A caller hears of a frozen leader; a leader that only takes its time is left alone."""

import asyncio
import contextlib
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from splash_core.leader.service import SERVER_OPTIONS
from splash_core.rpc.channels import CHANNEL_OPTIONS
from splash_core.rpc.keepalive import client_keepalive, server_keepalive

# Answers b"wait" when its stdin is closed, anything else at once.
_SERVER = """
import asyncio, sys, grpc.aio
from splash_core.rpc.keepalive import server_keepalive

class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        async def answer(request, context):
            if request == b"wait":
                await asyncio.to_thread(sys.stdin.read)
            return request
        return grpc.unary_unary_rpc_method_handler(answer)

async def main():
    server = grpc.aio.server(options=server_keepalive())
    server.add_generic_rpc_handlers((Echo(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""
WITHIN_S = 50
PINGS = client_keepalive(silence_s=0.6, answer_s=1.5)


@contextlib.asynccontextmanager
async def _leader() -> AsyncIterator[tuple[subprocess.Popen[str], grpc.aio.Channel]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        port = int(process.stdout.readline())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=PINGS) as channel:
            yield process, channel
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_call_to_a_frozen_leader_ends() -> None:
    async def main() -> None:
        async with _leader() as (process, channel):
            call = channel.unary_unary("/echo/Echo", bytes, bytes)
            assert await call(b"now", timeout=WITHIN_S) == b"now"
            waiting = asyncio.ensure_future(call(b"wait"))
            await asyncio.sleep(0)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await asyncio.wait_for(waiting, WITHIN_S)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(main())


def test_a_call_that_only_takes_long_survives_many_pings() -> None:
    async def main() -> None:
        async with _leader() as (process, channel):
            call = channel.unary_unary("/echo/Echo", bytes, bytes)
            waiting = asyncio.ensure_future(call(b"wait"))
            # Five intervals: the default server hangs up after the third ping.
            done, _ = await asyncio.wait({waiting}, timeout=3.5)
            assert done == set()
            assert process.stdin is not None
            process.stdin.close()
            assert await asyncio.wait_for(waiting, WITHIN_S) == b"wait"

    asyncio.run(main())


def test_leaders_and_their_callers_use_them() -> None:
    assert set(client_keepalive()) <= set(CHANNEL_OPTIONS)
    assert set(server_keepalive()) <= set(SERVER_OPTIONS)


_FRAME = struct.Struct(">BHBBI")
"""Of HTTP/2: length (1 + 2 bytes), type, flags, stream."""
_SETTINGS, _PING, _GOAWAY, _ACK = 4, 6, 7, 1


def _frame(kind: int, payload: bytes = b"") -> bytes:
    return _FRAME.pack(0, len(payload), kind, 0, 0) + payload


async def _frames_until_answered(port: int, pings: int) -> list[int]:
    """Ping so often, each time as soon as the one before is answered; kinds of all frames that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS))
    kinds: list[int] = []
    for number in range(pings):
        writer.write(_frame(_PING, struct.pack(">Q", number)))
        flags, payload = 0, b""
        while (flags, payload) != (_ACK, struct.pack(">Q", number)) and _GOAWAY not in kinds:
            _, length, kind, flags, _ = _FRAME.unpack(await reader.readexactly(_FRAME.size))
            payload = await reader.readexactly(length)
            kinds.append(kind)
    writer.close()
    await writer.wait_closed()
    return kinds


def test_pings_that_come_close_together_are_no_reason_to_hang_up() -> None:
    async def main() -> None:
        server = grpc.aio.server(options=server_keepalive())
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            kinds = await asyncio.wait_for(_frames_until_answered(port, 20), WITHIN_S)
        finally:
            await server.stop(None)
        assert kinds.count(_PING) >= 20
        assert _GOAWAY not in kinds

    asyncio.run(main())
