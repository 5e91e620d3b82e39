"""Everybody connects to leaders in the same way."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from services.prefill.link_relay import LinkRelay
from services.prefill.partners import Partners
from services.router.worker import GrpcWorker
from splash_core.errors import Unavailable
from splash_core.pb import common_pb2
from splash_core.rpc.channels import CHANNEL_OPTIONS
from splash_core.transport.abi import KvAbi

ABI = KvAbi(
    version="1", dtype="fp32", page_size=4, layers=2, latent_dim=32, rope_dim=8, rope="", scale="", model="m"
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
        partners = Partners(ABI, LinkRelay(_tell_nobody), writer="w")
        with pytest.raises(Unavailable):
            await partners.meet(common_pb2.Lease(decode_address="127.0.0.1:1", incarnation="i"))
        await partners.close()
        await worker.close()

    asyncio.run(main())
    assert opened == [dict(CHANNEL_OPTIONS)] * 2
    assert opened[0]["grpc.max_reconnect_backoff_ms"] == 1000
