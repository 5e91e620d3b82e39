"""A prompt computed in one group and continued in another gives what one group gives alone (fp64).

The state that travels is the first token, its log-probabilities and its position: noise is a function of seed
and position, penalties are functions of the tokens, so there is nothing else to carry.
"""

from collections.abc import Iterator

import pytest
import torch

from splash_core.ids import RequestId
from splash_core.layout.layout import Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import FinishedEvent, TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.scheduling.step import TokenLogprobs
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.conftest import TinyFactory
from tests.support.group import Ask, Group, Pair, Schedule, Turn, arena_with
from tests.support.ranks import ThreadRanks
from tests.support.small_model import small_checkpoint

SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=9, logprobs=3),
    "seeded": SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=1234, max_tokens=9, logprobs=3),
    "penalties": SamplingParams(
        temperature=0.8,
        seed=7,
        presence_penalty=0.3,
        frequency_penalty=0.5,
        repetition_penalty=1.3,
        max_tokens=9,
        logprobs=3,
    ),
    "minimum": SamplingParams(
        temperature=1.1, min_p=0.02, seed=3, min_tokens=4, stop_token_ids=tuple(range(60)), max_tokens=9
    ),
    "one token": SamplingParams(temperature=0.9, seed=5, max_tokens=1, logprobs=2),
}
PROMPTS = {name: tuple(range(5 + index, 12 + 3 * index)) for index, name in enumerate(SAMPLING)}


@pytest.fixture(scope="module")
def groups(tiny_checkpoint: TinyFactory) -> Iterator[list[Group]]:
    """Two ranks and four: a group computes the same alone, whatever its size."""
    torch.set_num_threads(1)
    checkpoint = small_checkpoint(tiny_checkpoint)
    spec = ModelSpec.from_checkpoint(checkpoint)
    ranks = [
        ThreadRanks(checkpoint, arena_with(spec, num_ranks=size, page_size=2, elem_bytes=8, ordinary=60))
        for size in (2, 4)
    ]
    yield [Group(each) for each in ranks]
    for each in ranks:
        each.close()


@pytest.fixture(scope="module")
def alone(groups: list[Group]) -> dict[str, tuple[list[int], str, list[TokenLogprobs | None]]]:
    """Tokens, end and log-probabilities of each request, by one group."""
    group = groups[0]
    group.reset(Layout.TP, SchedulerConfig(role=Role.COMBINED, chunk_tokens=64))
    for name, sampling in SAMPLING.items():
        group.scheduler.add(RequestId(name), PROMPTS[name], sampling)
    found: dict[str, tuple[list[int], str, list[TokenLogprobs | None]]] = {}
    tokens: dict[str, list[TokenEvent]] = {name: [] for name in SAMPLING}
    while group.scheduler.count():
        for event in group.step():
            if isinstance(event, TokenEvent):
                tokens[event.request_id].append(event)
            elif isinstance(event, FinishedEvent):
                told = tokens[event.request_id]
                reason = event.reason.value
                found[event.request_id] = ([e.token for e in told], reason, [e.logprobs for e in told])
    return found


def _close(left: TokenLogprobs | None, right: TokenLogprobs | None) -> bool:
    if left is None or right is None:
        return left is right
    same = left.token == right.token and [token for token, _ in left.top] == [token for token, _ in right.top]
    values = [(left.logprob, right.logprob)]
    values += [(a, b) for (_, a), (_, b) in zip(left.top, right.top, strict=True)]
    return same and all(abs(a - b) < 1e-9 for a, b in values)


@pytest.mark.parametrize("chunk_tokens", [3, 64])
@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)], ids=["2to4", "4to2"])
@pytest.mark.parametrize("switching", [False, True], ids=["plain", "switching"])
def test_the_split_changes_nothing(
    groups: list[Group],
    alone: dict[str, tuple[list[int], str, list[TokenLogprobs | None]]],
    chunk_tokens: int,
    sizes: tuple[int, int],
    switching: bool,
) -> None:
    pair = Pair(*(group for size in sizes for group in groups if group.arena.num_ranks == size))
    outcome = pair.run(
        Schedule(
            asks=tuple(
                Ask(arrives=index, prompt=PROMPTS[name], sampling=sampling)
                for index, (name, sampling) in enumerate(SAMPLING.items())
            ),
            turns=tuple(
                Turn(tick=tick, phase=phase, layout=layout, mode=SwitchMode.OVERLAPPED)
                for tick, phase, layout in (
                    (2, Role.PREFILL, Layout.CP),
                    (3, Role.DECODE, Layout.TP),
                    (5, Role.PREFILL, Layout.DOP),
                    (6, Role.DECODE, Layout.CP),
                )
            ),
            layouts=(Layout.DP, Layout.DP),
            chunk_tokens=chunk_tokens,
        ),
        switching=switching,
    )
    for index, name in enumerate(SAMPLING):
        tokens, reason, logprobs = alone[name]
        assert (outcome.tokens[index], outcome.finished[index]) == (tokens, reason), name
        assert all(map(_close, outcome.logprobs.get(index, []), logprobs)), name
        if SAMPLING[name].logprobs is not None:
            assert len(outcome.logprobs[index]) == len(logprobs)
            assert outcome.logprobs[index][0] is not None
