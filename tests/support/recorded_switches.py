"""A group's life of replayed decode steps with a switch that copies ahead, for tests on CPU and on GPUs."""

from collections import Counter
from dataclasses import dataclass, field

from splash_core.ids import RequestId
from splash_core.layout.layout import Layout
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import SwitchedEvent, TokenEvent
from splash_core.scheduling.roles import Role
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import SwitchMode
from tests.support.group import Group
from tests.support.ranks import REPLAYS

BUCKETS = (1, 2, 4)
PROMPTS = [[7 + 13 * index + 5 * position for position in range(2 + 4 * index)] for index in range(4)]
NUM_TOKENS = 24
_SWITCH_AT = 4
_MOST_STEPS = 200


@dataclass
class Life:
    """What came of it."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    switched: list[SwitchedEvent] = field(default_factory=list)
    decode_steps: Counter[Layout] = field(default_factory=Counter)
    """Steps with one row of each of its sequences, by layout."""
    ahead_steps: int = 0
    """Of these, with something copied ahead beside them."""
    replays: Counter[Layout] = field(default_factory=Counter)
    """On every rank."""
    recorded_through: set[str] = field(default_factory=set)


def live(group: Group, layout: Layout, destination: Layout | None = None) -> Life:
    """All prompts at once, then decode steps to the end; with a precopied switch in their midst."""
    config = SchedulerConfig(
        role=Role.COMBINED,
        layouts=tuple(Layout),
        chunk_tokens=256,
        # Two pages, or the weights of a layer, at a time: copying ahead takes some steps.
        precopy_bytes_per_step=2 * group.arena.slot_bytes,
    )
    group.reset(layout, config)
    for index, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
        group.scheduler.add(RequestId(str(index)), prompt, sampling)
    life = Life()
    for step in range(_MOST_STEPS):
        if step == _SWITCH_AT and destination is not None:
            answer = group.scheduler.request_switch(destination, SwitchMode.PRECOPIED)
            assert answer is None, f"the switch is scheduled, not answered with {answer}"
        for event in group.step():
            if isinstance(event, TokenEvent):
                life.tokens.setdefault(event.request_id, []).append(event.token)
            elif isinstance(event, SwitchedEvent):
                life.switched.append(event)
        plan = group.last_plan
        if plan is None:
            break
        if plan.sequences and all(rows.count == 1 for rows in plan.sequences):
            life.decode_steps[plan.layout] += 1
            life.ahead_steps += plan.precopy is not None
    assert not group.scheduler.count(), "not drained"
    for replays, through in group.ranks.ask(REPLAYS):
        life.recorded_through.add(through)
        on_rank: Counter[Layout] = Counter()
        for (of, _), count in replays.items():
            on_rank[of] += count
        assert life.replays in (Counter(), on_rank), "all ranks replay the same steps"
        life.replays = on_rank
    return life


def check(before: Layout, after: Layout, unswitched: Life, life: Life) -> None:
    """The switch was precopied, all decode steps were replayed, and every token is the same."""
    assert [(e.layout_from, e.layout_to, e.mode, e.fallback) for e in life.switched] == [
        (before, after, SwitchMode.PRECOPIED, "")
    ]
    assert unswitched.replays == unswitched.decode_steps
    assert life.decode_steps[before] > 1
    assert life.decode_steps[after] > 1
    assert life.replays[before] == life.decode_steps[before], "copying ahead runs beside replayed steps"
    assert life.replays[after] == life.decode_steps[after], "so is the step that moves what is left"
    for name, tokens in unswitched.tokens.items():
        assert len(tokens) == NUM_TOKENS
        differs = [at for at, (a, b) in enumerate(zip(life.tokens[name], tokens, strict=True)) if a != b]
        assert not differs, (
            f"{before} → {after}: request {name} differs from token {differs[0]} on: "
            f"{life.tokens[name]}, unswitched {tokens}"
        )
