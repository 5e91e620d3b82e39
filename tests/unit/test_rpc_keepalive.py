"""A caller hears of a frozen leader; a leader that only takes its time is left alone."""

import asyncio
import contextlib
import signal
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
