"""The promise of the system: the same tokens with and without switches, whatever happens around them.

fp64, so that no tie decides. Every schedule runs both phases through random arrivals, chunk sizes,
cancellations, preemptions and switches in all modes, and again without any switch.
"""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings

from services.demo.circuit import directed_circuit
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.scheduling.roles import Role
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.conftest import TinyFactory
from tests.support.group import Ask, Group, Pair, Schedule, Turn, arena_with
from tests.support.ranks import ThreadRanks
from tests.support.schedules import ORDINARY, schedules
from tests.support.small_model import small_checkpoint

NUM_SCHEDULES = 200
CROWDED = Schedule(
    asks=tuple(
        Ask(
            arrives=0,
            prompt=tuple(range(10 * index + 3, 10 * index + 11)),
            sampling=SamplingParams(temperature=0.0, max_tokens=20),
        )
        for index in range(8)
    ),
    turns=(Turn(tick=20, phase=Role.DECODE, layout=Layout.CP, mode=SwitchMode.OVERLAPPED),),
    layouts=(Layout.TP, Layout.DP),
    chunk_tokens=32,
    overcommit=2.0,
)
"""On each of four ranks two requests, of which one alone fills the pool: some are computed again."""
NUM_VARIANT_SCHEDULES = 20
AT_ONCE = (SwitchMode.BLOCKING, SwitchMode.OVERLAPPED)
VARIANTS = tuple(layout for layout in Layout if layout not in STANDARD_LAYOUTS)


@pytest.fixture(scope="module", params=[2, 4], ids=lambda ranks: f"T{ranks}")
def ranks(request: pytest.FixtureRequest, tiny_checkpoint: TinyFactory) -> Iterator[list[ThreadRanks]]:
    torch.set_num_threads(1)
    checkpoint = small_checkpoint(tiny_checkpoint)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=request.param, page_size=2, elem_bytes=8, ordinary=14)
    assert len(arena.borrowed) >= 8
    groups = [ThreadRanks(checkpoint, arena) for _ in range(2)]
    yield groups
    for each in groups:
        each.close()


@pytest.fixture(scope="module")
def pair(ranks: list[ThreadRanks]) -> Iterator[Pair]:
    """For the standard layouts."""
    groups = Group(ranks[0]), Group(ranks[1])
    yield Pair(*groups)
    # The schedules are worth nothing if they do not reach what they are for.
    assert groups[1].seen["evacuations"] > 0, groups[1].seen
    assert groups[1].seen["recomputed"] > 0, groups[1].seen
    ahead = ("commits", "pages ahead", "layers ahead")
    assert min(groups[1].seen[name] for name in ahead) > 0, groups[1].seen
    for group in groups:
        assert len(_directions(group)) == 12, group.seen


@pytest.fixture(scope="module")
def wide_pair(ranks: list[ThreadRanks]) -> Iterator[Pair]:
    """For all layouts."""
    groups = Group(ranks[0]), Group(ranks[1])
    yield Pair(*groups)
    assert groups[1].seen["evacuations"] > 0, groups[1].seen
    for group in groups:
        assert len(_directions(group)) == 20, group.seen


def _directions(group: Group) -> set[str]:
    return {name for name in group.seen if "→" in name and len(set(name.split("→"))) == 2}


def _check(pair: Pair, schedule: Schedule) -> None:
    switched = pair.run(schedule)
    unswitched = pair.run(schedule, switching=False)
    assert not unswitched.switched
    for index, ask in enumerate(schedule.asks):
        tokens, expected = switched.tokens[index], unswitched.tokens[index]
        if ask.cancelled is None:
            assert tokens == expected
            assert switched.finished[index] == unswitched.finished[index] == "length"
        else:
            both = min(len(tokens), len(expected))
            assert tokens[:both] == expected[:both]


OFTEN = settings(
    max_examples=NUM_SCHEDULES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


CROWDED = Schedule(
    asks=tuple(
        Ask(
            arrives=0,
            prompt=tuple(range(5 + index, 11 + index)),
            sampling=SamplingParams(temperature=0.0, max_tokens=22),
        )
        for index in range(6)
    ),
    turns=(Turn(tick=12, phase=Role.DECODE, layout=Layout.TP, mode=SwitchMode.PRECOPIED),),
    layouts=(Layout.TP, Layout.DP),
    chunk_tokens=32,
    overcommit=3.0,
)
"""More than the pools hold: some are computed again."""


@OFTEN
@given(schedule=schedules(ORDINARY))
@example(schedule=CROWDED)
def test_switches_change_no_token(pair: Pair, schedule: Schedule) -> None:
    _check(pair, schedule)


@settings(OFTEN, max_examples=NUM_VARIANT_SCHEDULES)
@given(schedule=schedules(ORDINARY, (*Layout, *VARIANTS, *VARIANTS)))
def test_switches_to_and_from_variants_change_no_token(wide_pair: Pair, schedule: Schedule) -> None:
    _check(wide_pair, schedule)


def test_every_directed_switch_of_all_layouts_changes_no_token(wide_pair: Pair) -> None:
    """One walk over all twenty, under requests that last for all of it, in both phases."""
    asks = tuple(
        Ask(
            arrives=0,
            prompt=tuple(range(5 + index, 27 + index)),
            sampling=SamplingParams(temperature=0.0, max_tokens=24),
        )
        for index in range(2)
    )
    start = Layout.TP
    turns = [
        Turn(tick=tick, phase=phase, layout=layout, mode=AT_ONCE[tick % len(AT_ONCE)])
        for phase, first in ((Role.PREFILL, 1), (Role.DECODE, 24))
        for tick, (_, layout) in enumerate(directed_circuit(tuple(Layout), start), first)
    ]
    schedule = Schedule(asks=asks, turns=tuple(turns), layouts=(start, start), chunk_tokens=1)
    outcome = wide_pair.run(schedule)
    assert outcome.refused == []
    assert len(outcome.switched) == len(turns)
    _check(wide_pair, schedule)
