"""Everybody connects to leaders in the same way."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc.aio
import pytest

from services.prefill.link_relay import LinkRelay
from services.prefill.partners import Partners
from services.router.worker import GrpcWorker
from splash_core.errors import Unavailable
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import common_pb2, control_pb2, control_pb2_grpc
from splash_core.rpc.abi import abi_to_pb
from splash_core.rpc.channels import CHANNEL_OPTIONS, open_channel
from splash_core.transport.abi import KvAbi

ABI = KvAbi(
    version="1", dtype="fp32", page_size=4, layers=2, latent_dim=32, rope_dim=8, rope="", scale="", model="m"
)


class Slow(control_pb2_grpc.ControlServicer):
    """A decode group that takes its time to describe itself."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = asyncio.Event()

    async def Describe(
        self, request: control_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GroupDescription:
        del request, context
        self.asked += 1
        await self.answers.wait()
        return control_pb2.GroupDescription(
            group="decode-0", incarnation="i", abi=abi_to_pb(ABI), sign_within_s=30.0
        )


async def _tell_nobody(notice: common_pb2.LinkNotice) -> None:
    del notice


def test_router_and_prefill_bound_the_pause_between_tries_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict[str, Any]] = []
    real = grpc.aio.insecure_channel

    def insecure_channel(address: str, options: Any) -> grpc.aio.Channel:
        opened.append(dict(options))
        return real(address, options=options)

    monkeypatch.setattr(grpc.aio, "insecure_channel", insecure_channel)

    async def main() -> None:
        worker = GrpcWorker("127.0.0.1:1")
        vitals = VitalTasks()
        partners = Partners(ABI, LinkRelay(_tell_nobody, vitals), vitals, writer="w")
        with pytest.raises(Unavailable):
            await partners.meet(common_pb2.Lease(decode_address="127.0.0.1:1", incarnation="i"))
        await partners.close()
        await worker.close()

    asyncio.run(main())
    assert opened == [dict(CHANNEL_OPTIONS)] * 2
    assert opened[0]["grpc.max_reconnect_backoff_ms"] == 1000


def test_requests_that_meet_a_decode_group_at_once_share_one_contact() -> None:
    """Two contacts would each tell a list of open handoffs that lacks the other's."""

    async def main() -> None:
        group, server = Slow(), grpc.aio.server()
        control_pb2_grpc.add_ControlServicer_to_server(group, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        vitals = VitalTasks()
        partners = Partners(ABI, LinkRelay(_tell_nobody, vitals), vitals, writer="w")
        lease = common_pb2.Lease(decode_address=f"127.0.0.1:{port}", incarnation="i")
        met = [asyncio.create_task(partners.meet(lease)) for _ in range(5)]
        gone = met.pop()
        while not group.asked:
            await asyncio.sleep(0.01)
        gone.cancel()
        group.answers.set()
        first, *others = await asyncio.gather(*met)
        assert all(other is first for other in [*others, await partners.meet(lease)])
        assert group.asked == 1
        await partners.close()
        await server.stop(0)

    asyncio.run(main())


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def test_a_leader_that_shakes_hands_late_is_busy_and_not_unavailable() -> None:
    async def main() -> None:
        group, server = Slow(), grpc.aio.server()
        group.answers.set()
        control_pb2_grpc.add_ControlServicer_to_server(group, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        tasks: list[asyncio.Task[None]] = []

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(1.0)
            inner = await asyncio.open_connection("127.0.0.1", port)
            tasks.extend(map(asyncio.create_task, (_pipe(reader, inner[1]), _pipe(inner[0], writer))))

        busy = await asyncio.start_server(late, "127.0.0.1", 0)
        channel = open_channel(f"127.0.0.1:{busy.sockets[0].getsockname()[1]}")
        described = await control_pb2_grpc.ControlStub(channel).Describe(control_pb2.DescribeRequest())
        assert described.group == "decode-0"
        await channel.close(None)
        busy.close()
        await server.stop(0)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
