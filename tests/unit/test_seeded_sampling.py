"""A seeded draw depends on its seed and position only: not on layout, batch mates or switches (fp64)."""

from collections.abc import Iterator

import pytest
import torch

from splash_core.ids import RequestId
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import SwitchedEvent, TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from tests.conftest import TinyFactory
from tests.support.group import Group, arena_with
from tests.support.ranks import ThreadRanks
from tests.support.small_model import small_checkpoint

PROMPT = (5, 9, 200, 31, 77, 4)
PARAMS = SamplingParams(
    temperature=0.9, top_p=0.95, top_k=40, seed=1234, frequency_penalty=0.4, max_tokens=16
)


@pytest.fixture(scope="module")
def group(tiny_checkpoint: TinyFactory) -> Iterator[Group]:
    torch.set_num_threads(1)
    checkpoint = small_checkpoint(tiny_checkpoint)
    spec = ModelSpec.from_checkpoint(checkpoint)
    ranks = ThreadRanks(checkpoint, arena_with(spec, num_ranks=2, page_size=2, elem_bytes=8, ordinary=80))
    yield Group(ranks)
    ranks.close()


def _draw(
    group: Group,
    layout: Layout,
    *,
    mates: int = 0,
    chunk: int = 64,
    switches: tuple[Layout, ...] = (),
    ahead: bool = False,
) -> list[int]:
    group.reset(layout, SchedulerConfig(role=Role.COMBINED, layouts=tuple(Layout), chunk_tokens=chunk))
    for mate in range(mates):
        params = SamplingParams(temperature=1.0, seed=mate, max_tokens=5 + mate)
        group.scheduler.add(RequestId(f"mate-{mate}"), (mate + 3,) * (mate + 1), params)
    group.scheduler.add(RequestId("me"), PROMPT, PARAMS)
    tokens: list[int] = []
    pending = list(switches)
    num_switched = 0
    while group.scheduler.count():
        if pending and len(tokens) >= 3 * (len(switches) - len(pending) + 1):
            assert group.scheduler.request_switch(pending.pop(0)) is None
        for event in group.step_ahead() if ahead else group.step():
            num_switched += isinstance(event, SwitchedEvent)
            if isinstance(event, TokenEvent) and event.request_id == "me":
                tokens.append(event.token)
    assert num_switched == len(switches)
    return tokens


@pytest.fixture(scope="module")
def alone(group: Group) -> list[int]:
    tokens = _draw(group, Layout.TP)
    assert len(tokens) == PARAMS.max_tokens
    assert len(set(tokens)) > 4, "a draw this uniform would hide a dependence"
    return tokens


@pytest.mark.parametrize("layout", Layout)
def test_same_tokens_one_step_ahead(group: Group, alone: list[int], layout: Layout) -> None:
    """The penalty counts a token that only the ranks know when the next row is sent."""
    before = group.seen["tokens ahead"]
    assert _draw(group, layout, mates=3, chunk=4, ahead=True) == alone
    assert group.seen["tokens ahead"] >= before + PARAMS.max_tokens - 2
    others = tuple(other for other in STANDARD_LAYOUTS if other is not layout)[:3]
    assert _draw(group, layout, switches=others, ahead=True) == alone


@pytest.mark.parametrize("layout", Layout)
def test_same_tokens_in_every_layout_and_batch(group: Group, alone: list[int], layout: Layout) -> None:
    assert _draw(group, layout) == alone
    assert _draw(group, layout, mates=5, chunk=3) == alone


def test_same_tokens_across_switches(group: Group, alone: list[int]) -> None:
    around = (Layout.CP, Layout.DOP_P, Layout.DP, Layout.TP)
    assert _draw(group, Layout.TP, mates=3, switches=around) == alone


def test_another_seed_draws_other_tokens(group: Group, alone: list[int]) -> None:
    group.reset(Layout.TP, SchedulerConfig(role=Role.COMBINED))
    params = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=99, max_tokens=16)
    group.scheduler.add(RequestId("other"), PROMPT, params)
    tokens = []
    while group.scheduler.count():
        tokens += [event.token for event in group.step() if isinstance(event, TokenEvent)]
    assert tokens != alone
