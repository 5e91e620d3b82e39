"""What an order over the wire means to the leader, zero and absent fields included."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc.aio
import pytest

from splash_core.config import GroupSettings
from splash_core.errors import Conflict, Infeasible, InvalidRequest
from splash_core.layout.layout import Layout
from splash_core.leader import control
from splash_core.leader.build import GroupBlueprint, draw_blueprint
from splash_core.leader.control import ControlServicer
from splash_core.leader.kept import MOST_KEPT
from splash_core.leader.leader import GroupCondition, GroupLeader
from splash_core.leader.steering import SwitchOutcome
from splash_core.pb import control_pb2, rank_pb2
from splash_core.policy.bundle import EvaluationRecorder, bundle_of, replay
from splash_core.policy.config import PolicyConfig
from splash_core.policy.snapshot import Phase
from splash_core.policy.state import PolicyState
from splash_core.spec.model import ModelSpec
from splash_core.switch.manifest import SwitchMode
from tests.support.policy_cases import cost_model, decoding, snapshot

CONTEXT = cast("grpc.aio.ServicerContext", None)


class Leader:
    """Remembers what it was ordered."""

    def __init__(self) -> None:
        self.failure = None
        self.condition = GroupCondition.READY
        self.steering = self
        self.holds: list[float | None] = []
        self.deadlines: list[float] = []
        self.recorder = EvaluationRecorder(cost_model())

    def set_layout(
        self, layout: Layout, mode: SwitchMode, *, hold_s: float | None
    ) -> "asyncio.Future[SwitchOutcome]":
        self.holds.append(hold_s)
        answer: asyncio.Future[SwitchOutcome] = asyncio.get_running_loop().create_future()
        answer.set_result(
            SwitchOutcome(
                layout_from=layout, layout_to=layout, epoch=1, mode=mode, exposed_ms=0.0, bytes_received=0
            )
        )
        return answer

    def wake(self) -> None:
        """Nothing sleeps here."""

    async def drain(self, timeout_s: float) -> int:
        self.deadlines.append(timeout_s)
        return 0


def servicer(leader: Leader) -> ControlServicer:
    blueprint = SimpleNamespace(group="g", settings=SimpleNamespace(drain_timeout_s=17.0))
    return ControlServicer(cast("GroupBlueprint", blueprint), cast("GroupLeader", leader))


@pytest.mark.parametrize(("setting", "told"), [(0, 2560), (2000, 2000)])
def test_the_context_is_told_apart_from_what_the_pool_holds(tiny_v3: Path, setting: int, told: int) -> None:
    # A pool that is smaller than the context bounds the prompt alone: output never comes to prefill.
    settings = GroupSettings(model=str(tiny_v3), page_size=8, kv_bytes=1 << 14, max_model_len=setting)
    blueprint = draw_blueprint(settings, Phase.PREFILL)
    scheduler = blueprint.scheduler(lambda: 0.0)
    leader = SimpleNamespace(scheduler=scheduler)
    control = ControlServicer(blueprint, cast("GroupLeader", leader))
    control.ranks_ready((rank_pb2.RankReady(),))
    description = asyncio.run(control.Describe(control_pb2.DescribeRequest(), CONTEXT))
    assert description.max_model_len == told
    assert description.max_request_tokens == scheduler.max_request_tokens < 1000


@pytest.mark.parametrize(
    ("layouts", "feasible"),
    [
        ("TP,CP,DP,DOP", {"TP": True, "CP": True, "DP": True, "DOP": True}),
        ("DP,DOP-P", {"TP": False, "CP": False, "DP": True, "DOP": False, "DOP-P": True}),
    ],
)
def test_a_description_lists_the_standard_layouts_and_the_variants_offered(
    tiny_v3: Path, layouts: str, feasible: dict[str, bool]
) -> None:
    settings = GroupSettings(model=str(tiny_v3), page_size=2, kv_bytes=1 << 16, layouts=layouts)
    blueprint = draw_blueprint(settings, Phase.DECODE)
    leader = SimpleNamespace(scheduler=blueprint.scheduler(lambda: 0.0))
    control = ControlServicer(blueprint, cast("GroupLeader", leader))
    control.ranks_ready((rank_pb2.RankReady(),))
    description = asyncio.run(control.Describe(control_pb2.DescribeRequest(), CONTEXT))
    assert {entry.layout: entry.feasible for entry in description.layouts} == feasible
    for entry in description.layouts:
        assert ("not among the group's --layouts" in entry.reason) is not entry.feasible
    tokens = {entry.layout: entry.distinct_tokens for entry in description.layouts}
    assert tokens.get("DOP-P", tokens["DOP"]) > tokens["DP"] > 0
    assert set(leader.scheduler.snapshot().pools) == {Layout(name) for name in feasible}


def test_a_text_of_the_router_s_is_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def raises(_: object, error: Exception) -> None:
        raise error

    async def scenario() -> None:
        keeping = servicer(Leader())
        await keeping.Keep(control_pb2.KeepRequest(name="probes", text="x"), CONTEXT)
        with pytest.raises(InvalidRequest, match="at most"):
            await keeping.Keep(control_pb2.KeepRequest(name="more", text="x" * MOST_KEPT), CONTEXT)
        for name, text in (("probes", "x"), ("more", "")):
            assert (await keeping.GetKept(control_pb2.KeptRequest(name=name), CONTEXT)).text == text

    monkeypatch.setattr(control, "abort", raises)
    asyncio.run(scenario())


def test_a_pin_to_what_cannot_be_run_is_refused_as_a_switch_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def raises(_: object, error: Exception) -> None:
        raise error

    monkeypatch.setattr(control, "abort", raises)
    blueprint = SimpleNamespace(group="g", refusal=lambda layout: f"{layout} needs 4 heads")
    pinning = ControlServicer(cast("GroupBlueprint", blueprint), cast("GroupLeader", Leader()))
    with pytest.raises(Conflict, match="layout CP is not feasible: CP needs 4 heads"):
        asyncio.run(pinning.Pin(control_pb2.PinRequest(layout="CP"), CONTEXT))
    with pytest.raises(InvalidRequest, match="'XX' is not one of"):
        asyncio.run(pinning.Pin(control_pb2.PinRequest(layout="XX"), CONTEXT))


def test_a_decode_pool_must_hold_the_context_that_is_set(tiny_v3: Path) -> None:
    settings = GroupSettings(model=str(tiny_v3), page_size=8, kv_bytes=1 << 14, max_model_len=2000)
    with pytest.raises(Infeasible, match="--max-model-len 2000"):
        draw_blueprint(settings, Phase.DECODE)


@pytest.mark.parametrize("phase", Phase)
def test_where_the_model_ends_no_larger_pool_is_named(tiny_v3: Path, phase: Phase) -> None:
    asked = GroupSettings(model=str(tiny_v3), page_size=8, kv_bytes=1 << 14, max_model_len=999_999_999)
    positions = ModelSpec.from_checkpoint(tiny_v3).max_positions
    with pytest.raises(Infeasible, match=rf"the model allows {positions} positions") as refused:
        draw_blueprint(asked, phase)
    assert "--kv-bytes" not in str(refused.value)
    with pytest.raises(Infeasible) as refused:
        draw_blueprint(replace(asked, kv_bytes=1 << 22), phase)
    assert str(refused.value).endswith(
        f"allows {positions} positions; nearest feasible: --max-model-len {positions}"
    )
    with pytest.raises(Infeasible, match=r"nearest feasible: --max-model-len \d+, or a larger --kv-bytes"):
        draw_blueprint(replace(asked, max_model_len=positions), Phase.DECODE)


def test_overcommit_is_a_decode_groups(tiny_v3: Path) -> None:
    settings = GroupSettings(model=str(tiny_v3), page_size=8, kv_bytes=1 << 19, admission_overcommit=2.5)
    found = {phase: draw_blueprint(settings, phase).scheduling.admission_overcommit for phase in Phase}
    assert found == {Phase.PREFILL: 1.0, Phase.DECODE: 2.5}


@pytest.mark.parametrize("hold_s", [None, 0.0, 5.0])
def test_a_hold_of_zero_is_zero_and_an_absent_one_is_the_policys(hold_s: float | None) -> None:
    leader = Leader()
    request = control_pb2.SetLayoutRequest(layout="TP", hold_s=hold_s)
    asyncio.run(servicer(leader).SetLayout(request, CONTEXT))
    assert leader.holds == [hold_s]


@pytest.mark.parametrize(("deadline_s", "waited_s"), [(None, 17.0), (0.0, 0.0), (5.0, 5.0)])
def test_a_deadline_of_zero_is_zero_and_an_absent_one_is_the_settings(
    deadline_s: float | None, waited_s: float
) -> None:
    leader = Leader()
    asyncio.run(servicer(leader).Drain(control_pb2.DrainRequest(deadline_s=deadline_s), CONTEXT))
    assert leader.deadlines == [waited_s]


def test_a_bundle_is_written_beside_the_loop_that_plans_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, writers = Leader(), set[int]()
    for context in (100, 200, 300):
        leader.recorder.decide(snapshot(decoding(2, context)), PolicyConfig(), PolicyState())

    def seen(*args: object) -> dict[str, object]:
        writers.add(threading.get_ident())
        return bundle_of(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(control, "bundle_of", seen)
    blueprint = SimpleNamespace(group="g", phase=Phase.DECODE)
    asked = ControlServicer(cast("GroupBlueprint", blueprint), cast("GroupLeader", leader))
    result = asyncio.run(asked.Bundle(control_pb2.BundleRequest(last=2), CONTEXT))
    assert (result.group, result.phase) == ("g", "decode")
    assert replay(json.loads(result.bundle)) == (2, [])
    assert writers.isdisjoint({threading.get_ident()})
