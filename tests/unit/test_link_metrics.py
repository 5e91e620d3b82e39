"""What the links of a group have carried, on `/metrics`."""

from types import SimpleNamespace
from typing import cast

from services.router.dispatch import Dispatcher
from services.router.health import gauges
from services.router.metrics import Metrics
from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.pb import common_pb2, control_pb2


def test_link_use_is_counted_by_group_and_class() -> None:
    use = common_pb2.LinkUse(traffic="handoff", bytes=4096, chunks=4, waits=2, wait_s=0.25)
    state = control_pb2.GroupState(group="prefill-0", layout="TP", link=[use])
    record = GroupRecord(address="a", phase="prefill", state=state)
    registry = cast("Registry", SimpleNamespace(records=lambda: [record]))
    idle = SimpleNamespace(requests=0, prompt_tokens=0)
    dispatcher = cast("Dispatcher", SimpleNamespace(running=0, waiting=idle))
    page = Metrics().render(gauges(registry, dispatcher))
    labels = 'group="prefill at a",phase="prefill",class="handoff"'
    assert f"splash_link_bytes_total{{{labels}}} 4096\n" in page
    assert f"splash_link_waits_total{{{labels}}} 2\n" in page
    assert f"splash_link_wait_seconds_total{{{labels}}} 0.25\n" in page
