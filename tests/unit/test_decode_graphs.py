"""Recorded decode steps give the tokens of ordinary ones: padding and the taking over of inputs."""

from collections import Counter
from collections.abc import Iterator

import pytest

from splash_core.attention.context import RankContext
from splash_core.engine.graphs import DecodeGraphs
from splash_core.engine.static_backends import decode_graphs
from splash_core.ids import GroupId, RequestId
from splash_core.layout.layout import Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.conftest import TinyFactory
from tests.support.group import Group, arena_with
from tests.support.ranks import ThreadRanks
from tests.support.small_model import small_checkpoint

RANKS, PAGE, BUCKETS = 2, 4, (1, 2, 4)


@pytest.fixture(scope="module")
def groups(tiny_checkpoint: TinyFactory) -> Iterator[tuple[Group, Group, Counter[tuple[Layout, int]]]]:
    """The same model twice: ordinary steps, and recorded ones."""
    checkpoint = small_checkpoint(tiny_checkpoint)
    arena = arena_with(
        ModelSpec.from_checkpoint(checkpoint), num_ranks=RANKS, page_size=PAGE, elem_bytes=8, ordinary=64
    )
    replays: Counter[tuple[Layout, int]] = Counter()

    def graphs_of(ctx: RankContext) -> DecodeGraphs:
        graphs = decode_graphs(ctx, buckets=BUCKETS)
        graphs.replays = replays
        for layout in Layout:
            graphs.record(layout)
        return graphs

    ordinary, recorded = ThreadRanks(checkpoint, arena), ThreadRanks(checkpoint, arena, graphs_of=graphs_of)
    yield Group(ordinary), Group(recorded), replays
    ordinary.close()
    recorded.close()


def _play(
    group: Group,
    layout: Layout,
    switch: tuple[int, Layout, SwitchMode] | None = None,
    *,
    ahead: bool = False,
) -> dict[str, list[int]]:
    """Seven requests that come and go, so that ranks have different numbers of rows, also none."""
    config = SchedulerConfig(role=Role.COMBINED, group=GroupId("g"), chunk_tokens=16, layouts=tuple(Layout))
    group.reset(layout, config)
    tokens: dict[str, list[int]] = {}
    for step in range(200):
        if step in (0, 1, 4):
            for index in range(4 if step == 4 else 1 + step):
                name = f"{step}.{index}"
                tokens[name] = []
                prompt = tuple((31 * step + 7 * index + 3 * place) % 289 for place in range(2 + 3 * index))
                sampling = SamplingParams(max_tokens=4 + 3 * index)
                group.scheduler.add(RequestId(name), prompt, sampling)
        if switch is not None and step == switch[0]:
            group.scheduler.request_switch(switch[1], switch[2])
        events = group.step_ahead() if ahead else group.step()
        for event in events:
            if isinstance(event, TokenEvent):
                tokens[str(event.request_id)].append(event.token)
        if step > 4 and not group.scheduler.count():
            return tokens
    raise AssertionError("not drained")


@pytest.mark.parametrize("layout", Layout)
def test_recorded_steps_give_the_same_tokens(
    groups: tuple[Group, Group, Counter[tuple[Layout, int]]], layout: Layout
) -> None:
    ordinary, recorded, replays = groups
    replays.clear()
    assert _play(recorded, layout) == _play(ordinary, layout)
    assert set(replays) >= {(layout, 1), (layout, 2)}, replays


@pytest.mark.parametrize("mode", [SwitchMode.BLOCKING, SwitchMode.OVERLAPPED])
def test_a_switch_between_recorded_steps_changes_no_token(
    groups: tuple[Group, Group, Counter[tuple[Layout, int]]], mode: SwitchMode
) -> None:
    ordinary, recorded, _ = groups
    plain = _play(ordinary, Layout.DP)
    for layout in (Layout.TP, Layout.CP, Layout.DOP):
        assert _play(recorded, Layout.DP, (7, layout, mode)) == plain
        assert _play(recorded, layout, (7, Layout.DP, mode)) == plain


@pytest.mark.parametrize("layout", Layout)
def test_recorded_steps_one_step_ahead_give_the_same_tokens(
    groups: tuple[Group, Group, Counter[tuple[Layout, int]]], layout: Layout
) -> None:
    """Recorded steps read token ids that the host does not know yet."""
    ordinary, recorded, replays = groups
    replays.clear()
    before = recorded.seen["tokens ahead"]
    assert _play(recorded, layout, ahead=True) == _play(ordinary, layout)
    assert recorded.seen["tokens ahead"] > before
    assert set(replays) >= {(layout, 1), (layout, 2)}, replays
