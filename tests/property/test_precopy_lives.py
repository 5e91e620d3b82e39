"""Random lives of groups that switch by copying ahead, on symbolic ranks.

The ranks prove at every step that what is copied is whole and stays so, that no table shows it before the
switch, and that no slot has two users; here every switching step is also compared with what a plain switch
would have done in its place.
"""

import copy
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from splash_core.errors import Conflict
from splash_core.ids import PageId, RankId
from splash_core.layout.layout import RULES, KvHistory, Layout
from splash_core.layout.ownership import PageTable
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.owners import NO_OWNERS
from splash_core.scheduling.roles import Role
from splash_core.switch.manifest import SwitchManifest, SwitchMode
from tests.property.test_scheduling import Life
from tests.support.toy_group import SPEC, ToyGroup, arena_of

SEEDS = st.integers(0, 2**32)


def ranks_of(table: PageTable) -> dict[PageId, tuple[RankId, ...]]:
    return {page: table.ranks(page) for page in table.pages}


def twin_of(scheduler: GroupScheduler, arena: object) -> GroupScheduler:
    """A copy that lives on its own; what never changes is shared."""
    shared = [arena, SPEC, NO_OWNERS, *RULES.values()]
    return copy.deepcopy(scheduler, {id(each): each for each in shared})


@dataclass
class AheadLife(Life):
    """Mostly grows histories, and asks for switches that copy ahead."""

    seen: Counter[str] = field(default_factory=Counter)

    @override
    def switch(self) -> None:
        scheduler = self.group.scheduler
        copying = scheduler.copying_ahead
        if copying and self.rng.random() < 0.9:
            return
        mode = self.rng.choice([SwitchMode.PRECOPIED] * 4 + list(SwitchMode))
        layout = self.rng.choice(list(Layout))
        try:
            scheduler.request_switch(layout, mode)
        except Conflict:
            return
        self.seen["called off"] += copying and layout is scheduler.layout

    @override
    def begin(self) -> bool:
        scheduler = self.group.scheduler
        ahead = scheduler._parts.residency.table.ahead
        twin = twin_of(scheduler, self.group.arena) if scheduler.copying_ahead else None
        copies = sum(ahead.count(RankId(rank)) for rank in range(self.group.arena.num_ranks))
        # Looking at everything settles what a switch has turned, so some steps are looked at later.
        self.group.watched = self.rng.random() < 0.5
        behind = bool(self.group.sent)
        if not self.group.begin():
            return False
        plan = self.group.sent[-1].plan
        if plan.precopy is not None:
            self.seen["one step ahead"] += behind
            self.seen["pages"] += len(plan.precopy.moves)
            self.seen["weights"] += bool(plan.precopy.weight_layers)
            self.seen["beside a manifest"] += plan.manifest is not None
        if plan.manifest is not None and plan.manifest.layout_from is not plan.manifest.layout_to:
            assert not ahead
            self.seen["with copies"] += copies > 0
            self.seen[plan.mode] += 1
            if twin is not None:
                self._compare(twin, plan.manifest, copies)
        return True

    def _compare(self, twin: GroupScheduler, manifest: SwitchManifest, copies: int) -> None:
        """The committed table is the one that a switch without copies ahead gives, up to slot numbers."""
        to = manifest.layout_to
        switcher = twin._parts.switcher
        switcher.ahead.end()
        switcher._wish = None
        if twin.request_switch(to) is not None:
            return  # it has no room to reorder pages in that the copies have had
        plan = twin.next_plan()
        assert plan is not None
        assert plan.manifest is not None
        if plan.manifest.layout_to is not to:
            return
        layers = self.group.arena.num_layers
        assert set(manifest.ready_layers) <= set(range(layers))
        tables = [each._parts.residency.table for each in (self.group.scheduler, twin)]
        chosen = RULES[to].history is KvHistory.OWNER
        if not chosen or RULES[manifest.layout_from].history is KvHistory.OWNER:
            assert ranks_of(tables[0]) == ranks_of(tables[1])
            assert len(manifest.moves) <= len(plan.manifest.moves)
        self.seen["compared"] += 1
        self.seen["saved moves"] += copies > 0 and len(manifest.moves) < len(plan.manifest.moves)


def ahead_life(seed: int, role: Role, *, one_step: bool) -> AheadLife:
    rng = Random(seed)
    num_ranks = rng.randint(1, 4)
    arena = arena_of(
        num_ranks=num_ranks,
        ordinary=rng.choice([6, 12, 24, 40]),
        borrowed=rng.choice([0, 4, 9]) if num_ranks > 1 else 0,
        page_size=rng.choice([1, 1, 2, 4]),
    )
    group = ToyGroup(
        role=role,
        layout=rng.choice(list(Layout)),
        arena=arena,
        chunk_tokens=rng.choice([3, 7, 30]),
        max_running=rng.choice([3, 16]),
        staging_bytes=arena.slot_bytes * rng.choice([1, 2, 100]),
        admission_overcommit=rng.choice([1.0, 1.0, 2.0, 10.0]),
        precopy_bytes_per_step=arena.slot_bytes * rng.choice([1, 1, 2, 5]),
    )
    return AheadLife(rng, group, role, rng.choice([0.5, 1.5]), ahead=one_step)


def live(seed: int, role: Role, *, ticks: int = 120, one_step: bool = False) -> AheadLife:
    """With `one_step`, steps are planned one ahead of the ranks."""
    life = ahead_life(seed, role, one_step=one_step)
    for _ in range(ticks):
        life.tick()
    life.drain()
    life.check()
    assert not any(rank.precopied for rank in life.group.scheduler.audit().ranks)
    return life


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_combined_group(seed: int) -> None:
    live(seed, Role.COMBINED)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_prefill_group(seed: int) -> None:
    live(seed, Role.PREFILL)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_decode_group(seed: int) -> None:
    live(seed, Role.DECODE)


@pytest.mark.parametrize("role", Role)
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_one_step_ahead(role: Role, seed: int) -> None:
    live(seed, role, one_step=True)


@pytest.mark.parametrize("one_step", [False, True])
def test_random_lives_reach_what_they_are_for(one_step: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(25):
        for role in (Role.COMBINED, Role.DECODE):
            life = live(seed, role, one_step=one_step)
            seen += life.seen
            seen["fallback"] += sum(bool(event.fallback) for event in life.group.switched)
            seen["refused"] += len(life.group.refused)
    expected = {"pages", "weights", "called off", "with copies", "compared", "saved moves", "fallback"}
    expected |= {"one step ahead"} if one_step else set()
    assert expected <= {name for name, count in seen.items() if count}, seen
