"""The promise of the system: the same tokens with and without switches, whatever happens around them.

fp64, so that no tie decides. Every schedule runs both phases through random arrivals, chunk sizes,
cancellations, preemptions and switches in all modes, and again without any switch.
"""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from splash_core.spec.model import ModelSpec
from tests.conftest import TinyFactory
from tests.support.group import Group, Pair, Schedule, arena_with
from tests.support.ranks import ThreadRanks
from tests.support.schedules import ORDINARY, schedules
from tests.support.small_model import small_checkpoint

NUM_SCHEDULES = 200


@pytest.fixture(scope="module", params=[2, 4], ids=lambda ranks: f"T{ranks}")
def pair(request: pytest.FixtureRequest, tiny_checkpoint: TinyFactory) -> Iterator[Pair]:
    torch.set_num_threads(1)
    checkpoint = small_checkpoint(tiny_checkpoint)
    spec = ModelSpec.from_checkpoint(checkpoint)
    arena = arena_with(spec, num_ranks=request.param, page_size=2, elem_bytes=8, ordinary=14)
    assert len(arena.borrowed) >= 8
    ranks = [ThreadRanks(checkpoint, arena) for _ in range(2)]
    groups = Group(ranks[0]), Group(ranks[1])
    yield Pair(*groups)
    # The schedules are worth nothing if they do not reach what they are for.
    assert groups[1].seen["evacuations"] > 0, groups[1].seen
    assert groups[1].seen["recomputed"] > 0, groups[1].seen
    assert min(groups[1].seen[name] for name in ("commits", "pages ahead", "layers ahead")) > 0, groups[
        1
    ].seen
    for group in groups:
        directions = {name for name in group.seen if "→" in name and len(set(name.split("→"))) == 2}
        assert len(directions) == 12, group.seen
    for each in ranks:
        each.close()


@settings(
    max_examples=NUM_SCHEDULES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(schedule=schedules(ORDINARY))
def test_switches_change_no_token(pair: Pair, schedule: Schedule) -> None:
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
