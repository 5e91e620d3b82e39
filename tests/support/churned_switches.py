"""Decode groups whose requests come and go while a switch copies ahead, every step a candidate for replay.

Histories are made up, from (request, page) alone, and land as a handoff's do; tokens are the engines' own. So
a request's tokens depend on nothing but the request, with or without a switch, whoever comes and goes beside.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from splash_core.ids import RequestId, SeqId
from splash_core.layout.layout import Layout
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.events import SwitchedEvent, TokenEvent
from splash_core.scheduling.leases import Completion
from splash_core.scheduling.roles import Role
from splash_core.scheduling.sequence import SeqState
from splash_core.scheduling.step import StepPlan
from splash_core.scheduling.written import Written
from splash_core.spec.request import SamplingParams
from splash_core.switch.manifest import PageMove, Primitive, SwitchMode
from tests.support.group import Group
from tests.support.ranks import REPLAYS, WHOLE_PAGES, Fill, Ranks

MOST = 4
"""Requests at once; as many may be at home on one rank."""
BUCKETS = (1, 2, 4)
_CONTEXT = 26
_OUTPUT = 24
_SHORT = 9
"""Output of the request that ends by itself while the switch copies ahead."""
_SWITCH_AT = 4
_MOST_STEPS = 400
_WRITER = "prefill"


@dataclass(frozen=True)
class SeenStep:
    """One step, as all ranks executed it."""

    plan: StepPlan
    replayed: bool


class WatchedRanks(Ranks):
    """Notes of each step whether it was replayed."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.arena, self.spec, self.memories = ranks.arena, ranks.spec, ranks.memories
        self.steps: list[SeenStep] = []
        self._replays = 0

    def ask(self, message: Any) -> list[Any]:
        answers = self._ranks.ask(message)
        if isinstance(message, Layout):
            self.steps, self._replays = [], 0
        elif isinstance(message, StepPlan):
            totals = {sum(replays.values()) for replays, _ in self._ranks.ask(REPLAYS)}
            assert len(totals) == 1, "all ranks replay the same steps"
            total = totals.pop()
            self.steps.append(SeenStep(message, total > self._replays))
            self._replays = total
        return answers


@dataclass
class ChurnedLife:
    """What came of it."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    """Requests that were not cancelled."""
    switched: list[SwitchedEvent] = field(default_factory=list)
    steps: Sequence[SeenStep] = ()
    landed_when_due: bool = False
    """A request landed at the very boundary at which the switch would have come."""


class Churn:
    """One life: requests in place, then decode steps to the end, with a switch in their midst.

    Args:
        group: over `WatchedRanks`.
        layout: to start in.
        destination: of the switch; None: there is none.
        mode: of the switch.
        relentless: one is cancelled and one admitted before every step, until the switch has been made.
        ahead: plan one step ahead of results, as leaders do.
    """

    def __init__(
        self,
        group: Group,
        layout: Layout,
        destination: Layout | None = None,
        *,
        mode: SwitchMode = SwitchMode.PRECOPIED,
        relentless: bool = False,
        ahead: bool = False,
    ) -> None:
        self._group, self._destination, self._mode = group, destination, mode
        self._relentless, self._ahead = relentless, ahead
        self._seqs: dict[str, SeqId] = {}
        self.life = ChurnedLife()
        config = SchedulerConfig(
            role=Role.DECODE,
            layouts=tuple(Layout),
            max_running=MOST,
            staging_bytes=WHOLE_PAGES * group.arena.slot_bytes,
            # Two pages, or the weights of a layer, at a time: copying ahead takes some steps.
            precopy_bytes_per_step=2 * group.arena.slot_bytes,
        )
        group.reset(layout, config)

    def run(self) -> ChurnedLife:
        """Play it to its end."""
        for index in range(MOST):
            self._admit(output=_SHORT if index == 1 else _OUTPUT)
        for step in range(_MOST_STEPS):
            if step == _SWITCH_AT and self._destination is not None:
                answer = self._group.scheduler.request_switch(self._destination, self._mode)
                assert answer is None, f"the switch is scheduled, not answered with {answer}"
            self._come_and_go(step - _SWITCH_AT)
            for event in self._group.step_ahead() if self._ahead else self._group.step():
                if isinstance(event, TokenEvent):
                    self.life.tokens[event.request_id].append(event.token)
                elif isinstance(event, SwitchedEvent):
                    self.life.switched.append(event)
            if step > _SWITCH_AT and not self._group.scheduler.count():
                break
        else:
            raise AssertionError(f"not drained after {_MOST_STEPS} steps")
        assert isinstance(self._group.ranks, WatchedRanks)
        self.life.steps = tuple(self._group.ranks.steps)
        assert self._group.scheduler.audit().pages_held == 0
        return self.life

    def _come_and_go(self, step: int) -> None:
        """Before a step, counted from the switch on."""
        if step < 0 or self.life.switched:
            return
        copying = self._group.scheduler.copying_ahead
        if self._relentless:
            if copying or step == 0:
                self._cancel()
                self._admit()
        elif copying and not self.life.landed_when_due and self._falls_due():
            self.life.landed_when_due = True
            self._admit()
        elif step == 0:
            self._cancel()
        elif step in (1, 7):
            self._admit()

    def _falls_due(self) -> bool:
        precopy = self._group.scheduler._parts.switcher.ahead._precopy
        return precopy is not None and precopy.falls_due

    def _cancel(self) -> None:
        """The oldest leaves: its pages have been copied first."""
        name = next(iter(self._seqs))
        self._group.scheduler.cancel(self._seqs.pop(name))
        self.life.whole.discard(name)

    def _admit(self, output: int = _OUTPUT) -> None:
        """One more, whose history has landed: where there is room."""
        scheduler, number = self._group.scheduler, len(self.life.tokens)
        if scheduler.count(SeqState.RUNNING, SeqState.LANDED) >= MOST + 1:
            return
        name = str(number)
        prompt = [(7 + 13 * number + 5 * position) % 288 for position in range(_CONTEXT + number % 3)]
        sampling = SamplingParams(temperature=0.0, max_tokens=output)
        grant = scheduler.reserve(RequestId(name), prompt, sampling)
        if grant is None:
            return
        keys: dict[str, Any] = {
            "attempt": grant.attempt,
            "incarnation": grant.incarnation,
            "writer": _WRITER,
        }
        scheduler.claim(grant.lease, **keys)
        copies = scheduler.copies(grant.seq)[: len(grant.pages)]
        self._group.ranks.ask(Fill(pages=tuple((number << 20 | at, each) for at, each in enumerate(copies))))
        completion = Completion(
            lease=grant.lease,
            num_tokens=len(prompt),
            checksum=grant.checksum,
            written=Written.whole(len(copies), self._group.arena),
            first_token=(31 * number + 3) % 288,
            first_position=len(prompt),
            **keys,
        )
        self._seqs[name] = grant.seq
        self.life.tokens[name] = []
        self.life.whole.add(name)
        for event in scheduler.landed(completion):
            if isinstance(event, TokenEvent):
                self.life.tokens[name].append(event.token)


def check_tokens(unswitched: ChurnedLife, life: ChurnedLife) -> None:
    """Each request has the tokens that it has without a switch; one that was cancelled, as far as it got."""
    common = life.tokens.keys() & unswitched.tokens.keys()
    assert len(common) >= MOST
    for name in sorted(common, key=int):
        tokens, expected = life.tokens[name], unswitched.tokens[name]
        if name not in life.whole & unswitched.whole:
            most = min(len(tokens), len(expected))
            tokens, expected = tokens[:most], expected[:most]
        assert tokens == expected, f"request {name}"


def check_replayed(life: ChurnedLife) -> None:
    """Every step with rows was replayed: ordinary, relocating, copying ahead, and the switching one."""
    launched = [
        f"step {step.plan.step} in {step.plan.layout}, manifest {step.plan.manifest is not None}"
        for step in life.steps
        if step.plan.sequences and not step.replayed
    ]
    assert not launched, launched
    assert all(rows.count == 1 for step in life.steps for rows in step.plan.sequences)


def check_bytes(life: ChurnedLife, arena: ArenaMap) -> None:
    """What the event tells is what manifests and batches say, and their receivers received."""
    (event,) = life.switched
    batches = [step.plan.precopy for step in life.steps if step.plan.precopy is not None]
    ahead = sum(move.src != move.dst for batch in batches for move in batch.moves)
    layers = sum(len(batch.weight_layers) * arena.gather_bytes_per_layer(batch.gathered) for batch in batches)
    assert event.precopied_bytes == ahead * arena.slot_bytes + layers * arena.num_ranks
    manifest = _switching(life).plan.manifest
    assert manifest is not None
    moved = len(moves_of(life)) * arena.slot_bytes
    if manifest.weights is Primitive.ALL_GATHER:
        rest = arena.num_layers - len(manifest.ready_layers)
        moved += rest * arena.gather_bytes_per_layer(manifest.gathered) * arena.num_ranks
    assert event.bytes_received == moved


def moves_of(life: ChurnedLife) -> tuple[PageMove, ...]:
    """Between ranks, in the switching step."""
    manifest = _switching(life).plan.manifest
    assert manifest is not None
    return tuple(move for move in manifest.moves if move.src != move.dst)


def _switching(life: ChurnedLife) -> SeenStep:
    """The step that goes from one layout to the other."""
    (event,) = life.switched
    (step,) = [
        step
        for step in life.steps
        if (manifest := step.plan.manifest) is not None
        and (manifest.layout_from, manifest.layout_to) == (event.layout_from, event.layout_to)
    ]
    return step
