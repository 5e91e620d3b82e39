"""A switch of a decode group reaches the links of the ranks that write to it, and so does its end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc.aio

from services.prefill.link_relay import LinkRelay
from splash_core.engine.other_switches import OtherSwitches
from splash_core.ids import Epoch, StepId
from splash_core.layout.layout import Layout
from splash_core.leader.link_notices import LinkNotices
from splash_core.obs.vitals import VitalTasks
from splash_core.pb import common_pb2, decode_pb2, decode_pb2_grpc
from splash_core.scheduling.step import StepPlan
from splash_core.switch.manifest import Primitive, SwitchManifest
from splash_core.transport.classes import TrafficClass
from splash_core.transport.link import BandwidthArbiter
from tests.support.flows import may_go

WITHIN_S = 20
PLAN = StepPlan(step=StepId(1), epoch=Epoch(1), layout=Layout.DP)
SWITCH = replace(
    PLAN,
    manifest=SwitchManifest(
        layout_from=Layout.TP,
        layout_to=Layout.DP,
        epoch=Epoch(1),
        weights=Primitive.ALL_GATHER,
        kv=Primitive.DISCARD,
    ),
)
NEAR = replace(PLAN, switch_near=True)
Heard = tuple[bool, bool]


def as_pair(notice: common_pb2.LinkNotice) -> Heard:
    return notice.near, notice.switching


def test_a_listener_hears_the_state_now_and_every_change() -> None:
    async def main() -> list[Heard]:
        notices = LinkNotices()
        heard: list[Heard] = []

        async def listen() -> None:
            async for notice in notices.watch():
                heard.append(as_pair(notice))

        task = asyncio.create_task(listen())
        for plans in ((PLAN,), (PLAN, NEAR), (NEAR,), (), (SWITCH,), (SWITCH, PLAN), (PLAN,), (SWITCH,), ()):
            notices.under_way(plans)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        task.cancel()
        return heard

    quiet, near, switching = (False, False), (True, False), (False, True)
    assert asyncio.run(main()) == [quiet, near, switching, quiet, switching, quiet]


class Decode(decode_pb2_grpc.DecodeServicer):
    """Says what the test has it say."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[common_pb2.LinkNotice] = asyncio.Queue()

    async def WatchLinks(
        self, request: decode_pb2.WatchLinksRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[common_pb2.LinkNotice]:
        del request, context
        while True:
            yield await self.says.get()


def test_ranks_hear_of_all_groups_as_one_and_that_a_group_has_gone() -> None:
    async def main() -> None:
        heard: asyncio.Queue[Heard] = asyncio.Queue()

        async def tell(notice: common_pb2.LinkNotice) -> None:
            heard.put_nowait(as_pair(notice))

        async def expect(pair: Heard) -> None:
            assert await asyncio.wait_for(heard.get(), WITHIN_S) == pair

        relay = LinkRelay(tell, VitalTasks())
        groups = [Decode(), Decode()]
        servers = [grpc.aio.server() for _ in groups]
        channels: list[grpc.aio.Channel] = []
        for server, group in zip(servers, groups, strict=True):
            decode_pb2_grpc.add_DecodeServicer_to_server(group, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
            relay.listen_anew(f"group {port}", decode_pb2_grpc.DecodeStub(channels[-1]))
        groups[0].says.put_nowait(common_pb2.LinkNotice(near=True))
        await expect((True, False))
        groups[1].says.put_nowait(common_pb2.LinkNotice(switching=True))
        await expect((True, True))
        groups[0].says.put_nowait(common_pb2.LinkNotice(switching=True))
        await expect((False, True))
        groups[0].says.put_nowait(common_pb2.LinkNotice())
        await servers[1].stop(0)
        await expect((False, False))
        await relay.close()
        for channel in channels:
            await channel.close(None)
        await servers[0].stop(0)

    asyncio.run(main())


def test_another_groups_switch_holds_the_link_once_and_lets_go() -> None:
    link = BandwidthArbiter()
    flow = link.flow(TrafficClass.HANDOFF)
    others = OtherSwitches(link)
    others.hear(common_pb2.LinkNotice(switching=True))
    others.hear(common_pb2.LinkNotice(switching=True, near=True))
    flow.want(100)
    assert not may_go(flow)
    others.hear(common_pb2.LinkNotice(near=True))
    assert may_go(flow)
