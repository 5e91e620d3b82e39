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

pytestmark = pytest.mark.timeout(900)

NUM_SCHEDULES = 200
NUM_VARIANT_SCHEDULES = 20
NUM_AHEAD_SCHEDULES = 25
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


def pair_of(ranks: list[ThreadRanks]) -> Pair:
    """New groups, which have seen nothing yet."""
    return Pair(Group(ranks[0]), Group(ranks[1]))


@pytest.fixture(scope="module")
def pair(ranks: list[ThreadRanks]) -> Iterator[Pair]:
    groups = pair_of(ranks)
    yield groups
    # The schedules are worth nothing if they do not reach what they are for.
    ahead = ("commits", "pages ahead", "layers ahead")
    assert min(groups.decode.seen[name] for name in ahead) > 0, groups.decode.seen
    assert groups.prefill.seen["early pages"] > 0, groups.prefill.seen
    for group in (groups.prefill, groups.decode):
        assert len(_directions(group)) == 12, group.seen


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


@settings(OFTEN, max_examples=NUM_AHEAD_SCHEDULES)
@given(schedule=schedules(ORDINARY))
@example(schedule=CROWDED)
def test_running_one_step_ahead_changes_no_token(ranks: list[ThreadRanks], schedule: Schedule) -> None:
    """Penalties and seeds included: only ranks know what a row draws when its next row is sent."""
    pair = pair_of(ranks)
    ahead, plain = pair.run(schedule, ahead=True), pair.run(schedule, switching=False)
    for index, ask in enumerate(schedule.asks):
        both = len(plain.tokens[index])
        if ask.cancelled is None:
            assert ahead.finished[index] == plain.finished[index]
        else:
            both = min(both, len(ahead.tokens[index]))
        assert ahead.tokens[index][:both] == plain.tokens[index][:both]


def test_evacuations_and_recomputations_change_no_token(ranks: list[ThreadRanks]) -> None:
    """Two requests spill into borrowed slots, which CP needs; then eight share the room of fewer in DP."""
    few, many = SamplingParams(temperature=0.0, max_tokens=14), SamplingParams(temperature=0.0, max_tokens=18)
    asks = [Ask(arrives=0, prompt=tuple(range(5 + each, 15 + each)), sampling=few) for each in range(2)]
    asks += [Ask(arrives=40, prompt=tuple(range(9 + each, 19 + each)), sampling=many) for each in range(8)]
    turns = [
        Turn(tick=tick, phase=Role.DECODE, layout=layout, mode=SwitchMode.OVERLAPPED)
        for tick, layout in ((12, Layout.CP), (35, Layout.DP))
    ]
    crowded = Schedule(
        asks=tuple(asks),
        turns=tuple(turns),
        layouts=(Layout.TP, Layout.TP),
        chunk_tokens=32,
        overcommit=2.0,
    )
    pair = pair_of(ranks)
    _check(pair, crowded)
    assert pair.decode.seen["evacuations"] > 0
    assert pair.decode.seen["recomputed"] > 0


@settings(OFTEN, max_examples=NUM_VARIANT_SCHEDULES)
@given(schedule=schedules(ORDINARY, (*Layout, *VARIANTS, *VARIANTS)))
def test_switches_to_and_from_variants_change_no_token(ranks: list[ThreadRanks], schedule: Schedule) -> None:
    _check(pair_of(ranks), schedule)


def test_every_directed_switch_of_all_layouts_changes_no_token(ranks: list[ThreadRanks]) -> None:
    """One walk over all twenty in both phases, under requests of which one or two run at any time."""
    length, last = 6, 8
    asks = tuple(
        Ask(
            arrives=length * index,
            prompt=tuple(range(5 + index, 5 + index + length)),
            sampling=SamplingParams(temperature=0.0, max_tokens=last),
        )
        for index in range(5)
    )
    start = Layout.TP
    turns = [
        Turn(tick=tick, phase=phase, layout=layout, mode=AT_ONCE[tick % len(AT_ONCE)])
        for phase, first in ((Role.PREFILL, 1), (Role.DECODE, length + 2))
        for tick, (_, layout) in enumerate(directed_circuit(tuple(Layout), start), first)
    ]
    schedule = Schedule(asks=asks, turns=tuple(turns), layouts=(start, start), chunk_tokens=1)
    pair = pair_of(ranks)
    _check(pair, schedule)
    for group in (pair.prefill, pair.decode):
        assert len(_directions(group)) == 20, group.seen
