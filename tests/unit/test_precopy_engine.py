"""Copying ahead with real engines: the same tokens, and on the wire exactly the bytes that the plans name."""

from collections.abc import Iterator
from itertools import permutations

import pytest
import torch

from splash_core.ids import RequestId, SeqId
from splash_core.layout.layout import Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import Event, SwitchedEvent, TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.scheduling.step import StepPlan
from splash_core.spec.model import ModelSpec
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.conftest import TinyFactory
from tests.support.group import Group, arena_with
from tests.support.ranks import ThreadRanks
from tests.support.small_model import small_checkpoint

PAGE = 2
PROMPTS = ([5, 9, 200, 31, 77, 4, 18], [7, 7, 30], [90, 14, 3, 8, 201, 66, 5, 12, 44])
LATE = [61, 2, 7, 19, 4]


@pytest.fixture(scope="module")
def group(tiny_checkpoint: TinyFactory) -> Iterator[Group]:
    torch.set_num_threads(1)
    checkpoint = small_checkpoint(tiny_checkpoint)
    arena = arena_with(
        ModelSpec.from_checkpoint(checkpoint), num_ranks=2, page_size=PAGE, elem_bytes=8, ordinary=60
    )
    ranks = ThreadRanks(checkpoint, arena)
    yield Group(ranks)
    ranks.close()


@pytest.fixture(scope="module")
def expected(group: Group) -> dict[str, list[int]]:
    return Run(group, Layout.DP).finish().tokens


class Run:
    """A short life of a group: three requests, one that is cancelled, one that comes late."""

    def __init__(self, group: Group, layout: Layout, *, pages_a_step: int = 4) -> None:
        self.group = group
        self.tokens: dict[str, list[int]] = {}
        self.switched: list[SwitchedEvent] = []
        self.plans: list[StepPlan] = []
        rate = group.arena.slot_bytes * pages_a_step
        config = SchedulerConfig(
            role=Role.COMBINED, layouts=tuple(Layout), precopy_bytes_per_step=rate, max_running=8
        )
        group.reset(layout, config)
        for index, prompt in enumerate(PROMPTS):
            self.add(str(index), prompt)
        self.gone = self.add("gone", [250, *PROMPTS[0]])
        for _ in range(4):
            self.step()

    def add(self, name: str, prompt: list[int]) -> SeqId:
        sampling = SamplingParams(temperature=0.0, max_tokens=18)
        return self.group.scheduler.add(RequestId(name), prompt, sampling)

    def step(self) -> None:
        self.take(self.group.step())
        if self.group.last_plan is not None:
            self.plans.append(self.group.last_plan)

    def take(self, events: tuple[Event, ...]) -> None:
        for event in events:
            if isinstance(event, TokenEvent) and event.request_id != "gone":
                self.tokens.setdefault(event.request_id, []).append(event.token)
            elif isinstance(event, SwitchedEvent):
                self.switched.append(event)

    def finish(self) -> "Run":
        self.step()
        self.group.scheduler.cancel(self.gone)
        self.add("late", LATE)
        while self.group.scheduler.count():
            self.step()
        assert self.group.scheduler.audit().pages_held == 0
        return self


@pytest.mark.parametrize(("before", "after"), list(permutations(Layout, 2)))
def test_tokens_and_bytes_of_every_direction(
    group: Group, expected: dict[str, list[int]], before: Layout, after: Layout
) -> None:
    run = Run(group, before)
    assert group.scheduler.request_switch(after, SwitchMode.PRECOPIED) is None
    run.finish()
    assert run.tokens == expected
    (event,) = run.switched
    assert (event.layout_to, event.mode, event.fallback) == (after, SwitchMode.PRECOPIED, "")
    arena = group.arena
    batches = [plan.precopy for plan in run.plans if plan.precopy is not None]
    pages = sum(len(batch.moves) for batch in batches)
    layers = [layer for batch in batches for layer in batch.weight_layers]
    gathered = sum(
        len(batch.weight_layers) * arena.gather_bytes_per_layer(batch.gathered) for batch in batches
    )
    assert event.precopied_bytes == pages * arena.slot_bytes + gathered * arena.num_ranks
    (manifest,) = [plan.manifest for plan in run.plans if plan.mode is SwitchMode.PRECOPIED]
    assert manifest is not None
    assert tuple(layers) == manifest.ready_layers
    # Weights and full pages have gone ahead: a request has a last page, and one that was filled.
    assert event.bytes_received == len(manifest.moves) * arena.slot_bytes
    assert len(manifest.moves) <= 2 * (len(PROMPTS) + 1)
    if manifest.moves:
        assert pages > 0
