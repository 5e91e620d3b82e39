"""A decode switch is executed as it is priced: before replayed rows, beside the layers of launched ones.

A scheduler drives real engines; the price is the policy's, from that scheduler's own snapshot.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from splash_core.attention.context import RankContext
from splash_core.cost.model import CostModel
from splash_core.cost.precision import named_precision
from splash_core.cost.profile import analytical_profile
from splash_core.cost.switch import SwitchBytes, switch_bytes, switch_cost
from splash_core.engine.graphs import DecodeGraphs
from splash_core.engine.static_backends import decode_graphs
from splash_core.engine.switching import SwitchExecution
from splash_core.ids import GroupId, RequestId
from splash_core.layout.layout import RULES, Layout
from splash_core.layout.slots import ArenaMap
from splash_core.policy.config import PolicyConfig
from splash_core.policy.decision import Decision
from splash_core.policy.snapshot import Phase
from splash_core.policy.state import PolicyState
from splash_core.policy.switching import decide
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import Event, SwitchedEvent
from splash_core.scheduling.roles import Role
from splash_core.spec.hardware import named_gpu
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.conftest import TinyFactory
from tests.support.group import Group, arena_with
from tests.support.ranks import WHOLE_PAGES, ThreadRanks
from tests.support.small_model import small_checkpoint

RANKS, PAGE, REQUESTS = 2, 4, 4
MOVING = [(Layout.DP, Layout.TP), (Layout.CP, Layout.DOP), (Layout.TP, Layout.DP), (Layout.DOP, Layout.CP)]
"""Histories gathered, histories exchanged, weights gathered, both."""
RECORDED = {"graphs off": (), "recorded": (1, 2, 4), "beyond the buckets": (1,)}
"""Buckets: two rows are at home on each rank, or, where pages are striped, up to four on one."""


@dataclass
class Waits:
    """For each layer that rows of a switching step waited for: was all in place before?"""

    complete: list[bool] = field(default_factory=list)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """What the engines' switches do."""
    seen, wait_layer = Waits(), SwitchExecution.wait_layer

    def noted(execution: SwitchExecution, layer: int) -> None:
        seen.complete.append(execution._complete)
        wait_layer(execution, layer)

    monkeypatch.setattr(SwitchExecution, "wait_layer", noted)
    return seen


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: TinyFactory) -> Path:
    torch.set_num_threads(1)
    return small_checkpoint(tiny_checkpoint)


@pytest.fixture(scope="module")
def arena(checkpoint: Path) -> ArenaMap:
    spec = ModelSpec.from_checkpoint(checkpoint)
    return arena_with(spec, num_ranks=RANKS, page_size=PAGE, elem_bytes=8, ordinary=64)


@pytest.fixture(scope="module", params=RECORDED)
def recorded(
    checkpoint: Path, arena: ArenaMap, request: pytest.FixtureRequest
) -> Iterator[tuple[Group, int]]:
    """A group, and the most home rows that it has recorded."""
    buckets = RECORDED[request.param]

    def graphs_of(ctx: RankContext) -> DecodeGraphs:
        graphs = decode_graphs(ctx, buckets=buckets)
        for layout in Layout:
            graphs.record(layout)
        return graphs

    ranks = ThreadRanks(checkpoint, arena, graphs_of=graphs_of if buckets else None)
    yield Group(ranks), max(buckets, default=0)
    ranks.close()


def decoding(group: Group, layout: Layout, recorded_rows: int, *, requests: int = REQUESTS) -> None:
    """Equal requests, all of them past their prompts."""
    config = SchedulerConfig(
        role=Role.COMBINED,
        group=GroupId("g"),
        layouts=tuple(Layout),
        chunk_tokens=64,
        recorded_rows=recorded_rows,
        staging_bytes=WHOLE_PAGES * group.arena.slot_bytes,
        precopy_bytes_per_step=4 * group.arena.slot_bytes,
    )
    group.reset(layout, config)
    for index in range(requests):
        prompt = [(7 + 31 * index + 5 * place) % 288 for place in range(11)]
        sampling = SamplingParams(temperature=0.0, max_tokens=40)
        group.scheduler.add(RequestId(str(index)), prompt, sampling)
    while (snapshot := group.scheduler.snapshot()).phase is not Phase.DECODE or snapshot.waiting:
        group.step()
    assert snapshot.decodes
    assert len(snapshot.running) == requests


def priced(group: Group, model: CostModel, layout: Layout) -> tuple[Decision, SwitchMode]:
    """The record of a pin, and the mode by whose equation it prices a switch that copies nothing ahead."""
    snapshot = group.scheduler.snapshot()
    decision, _ = decide(snapshot, model, PolicyConfig(), PolicyState().with_pin(layout))
    offered = decision.inputs["executors"]["overlapped"]["exposed_ms"] / 1e3
    rules = RULES[snapshot.layout], RULES[layout]
    moved = switch_bytes(model.spec, model.precision, *rules, owner_tokens=snapshot.owned_tokens())
    step_s = decision.predicted_ms[layout] / 1e3
    (mode,) = [
        mode
        for mode in (SwitchMode.BLOCKING, SwitchMode.OVERLAPPED)
        if switch_cost(
            model.profile, moved, layers=model.spec.num_mla_layers, step_s=step_s, mode=mode
        ).exposed_s
        == pytest.approx(offered)
    ]
    return decision, mode


def cost_model(group: Group) -> CostModel:
    return CostModel(
        spec=group.spec,
        precision=named_precision("fp64"),
        profile=analytical_profile(named_gpu("cpu"), dtype="fp64"),
        num_ranks=RANKS,
    )


@pytest.mark.parametrize("requests", [2, 8], ids=["one transfer", "more than one transfer"])
def test_what_copying_ahead_has_left_is_where_its_price_has_it(
    recorded: tuple[Group, int], requests: int, waits: Waits
) -> None:
    """Each rank lacks a last page of each of the other's requests."""
    group, recorded_rows = recorded
    model = cost_model(group)
    decoding(group, Layout.DP, recorded_rows, requests=requests)
    snapshot = group.scheduler.snapshot()
    decision, _ = decide(snapshot, model, PolicyConfig(), PolicyState().with_pin(Layout.TP))
    replayed = decision.inputs["step_kinds"][Layout.TP] == "replayed"
    offered = decision.inputs["executors"]["precopied"]["exposed_ms"] / 1e3
    row = model.precision.kv_token_bytes(model.spec)
    left = SwitchBytes(weights=0, kv=requests // RANKS * (PAGE + 1) * row)
    at_once = switch_cost(model.profile, left, layers=1, step_s=0.0, mode=SwitchMode.BLOCKING)
    before = replayed or requests == 2
    assert (offered == pytest.approx(at_once.exposed_s)) == before

    assert group.scheduler.request_switch(Layout.TP, SwitchMode.PRECOPIED) is None
    events: tuple[Event, ...] = ()
    while not any(isinstance(event, SwitchedEvent) for event in events):
        waits.complete.clear()
        events = group.step()
    (event,) = [event for event in events if isinstance(event, SwitchedEvent)]
    assert (event.mode, event.fallback) == (SwitchMode.PRECOPIED, "")
    assert event.bytes_received == requests * group.arena.slot_bytes
    assert waits.complete == ([] if replayed else [before] * RANKS * group.spec.layers)


@pytest.mark.parametrize(("before", "after"), MOVING)
def test_moves_are_where_their_price_has_them(
    recorded: tuple[Group, int], before: Layout, after: Layout, waits: Waits
) -> None:
    group, recorded_rows = recorded
    model = cost_model(group)
    decoding(group, before, recorded_rows)
    decision, mode = priced(group, model, after)
    assert group.scheduler.request_switch(after, SwitchMode.OVERLAPPED) is None
    waits.complete.clear()
    (event,) = [event for event in group.step() if isinstance(event, SwitchedEvent)]
    assert (event.layout_to, decision.layout_to) == (after, after)
    replayed = decision.inputs["step_kinds"][after] == "replayed"
    assert mode is (SwitchMode.BLOCKING if replayed else SwitchMode.OVERLAPPED)
    if replayed:
        assert waits.complete == []
    else:
        assert waits.complete == [False] * RANKS * group.spec.layers
