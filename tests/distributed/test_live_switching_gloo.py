"""The same promise on real processes that talk over gloo, one pool for all schedules."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from splash_core.spec.model import ModelSpec
from tests.conftest import TinyFactory
from tests.support.group import Group, Pair, Schedule, arena_with
from tests.support.ranks import ProcessRanks
from tests.support.schedules import SHORT, schedules
from tests.support.small_model import small_checkpoint

pytestmark = pytest.mark.timeout(900)

NUM_SCHEDULES = 20


@pytest.fixture(scope="module", params=[2, 4], ids=lambda ranks: f"T{ranks}")
def pair(
    request: pytest.FixtureRequest, tiny_checkpoint: TinyFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    checkpoint = small_checkpoint(tiny_checkpoint)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=request.param, page_size=2, elem_bytes=8, ordinary=14)
    folders: list[Path] = [tmp_path_factory.mktemp(name) for name in ("prefill", "decode")]
    ranks = [ProcessRanks(checkpoint, arena, folder) for folder in folders]
    yield Pair(Group(ranks[0]), Group(ranks[1]))
    for each in ranks:
        each.close()


@settings(
    max_examples=NUM_SCHEDULES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(schedule=schedules(SHORT))
def test_switches_and_running_ahead_change_no_token(pair: Pair, schedule: Schedule) -> None:
    switched = pair.run(schedule, ahead=True)
    unswitched = pair.run(schedule, switching=False)
    for index, ask in enumerate(schedule.asks):
        tokens, expected = switched.tokens[index], unswitched.tokens[index]
        both = len(expected) if ask.cancelled is None else min(len(tokens), len(expected))
        assert tokens[:both] == expected[:both]
