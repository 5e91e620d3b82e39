"""Small fleets to simulate, and what two runs of one workload are compared by."""

import random
from dataclasses import replace

from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import RULES, STANDARD_LAYOUTS
from splash_core.layout.slots import ArenaMap
from splash_core.policy.document import parse_document
from splash_core.scheduling.roles import Role
from splash_core.simulate.cluster import Cluster, Course, Detail
from splash_core.simulate.comparison import policy_course
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.generators import Size, generate
from splash_core.simulate.ledger import Ledger
from splash_core.simulate.pilots import Limit, Look, Move, Policy
from splash_core.simulate.policies import Policies
from splash_core.simulate.workload import Request, Scale, Workload
from splash_core.spec.parts import IndexerSpec
from splash_core.switch.manifest import SwitchMode
from tests.support.policy_cases import SMOL, cost_model

PAIR = {Role.PREFILL: 1, Role.DECODE: 1}


def policies(text: str, *, start_s: float | None = None) -> Policies:
    """What a document says."""
    return Policies(document=parse_document(text), start_s=start_s)


class CopiesAhead(Policy):
    """A policy whose every switch is to be copied ahead, whatever that costs."""

    def at_boundary(self, now: float, look: Look, move: Move, limit: Limit) -> None:
        super().at_boundary(now, look, lambda layout, _: move(layout, SwitchMode.PRECOPIED), limit)


def copying_course(fleet: Fleet, said: Policies) -> Course:
    """Groups that go where their policy says, always copying ahead."""
    return replace(
        policy_course(fleet, said),
        pilot=lambda role, name: CopiesAhead(fleet.model, said.of(fleet, role, name)),
    )


QUICK = policies("[all]\ndwell_s = 2.0\ninterval_s = 0.5")


SPARSE = cost_model(
    replace(SMOL, indexer=IndexerSpec(num_heads=4, head_dim=64, top_k=48, layers=SMOL.num_mla_layers))
)
"""The demo model with sparse attention: most requests grow past what it chooses."""


def small_fleet(*, pages: int = 1500, ranks: int = 2, page_size: int = 16, **settings: object) -> Fleet:
    """The demo model on the CPU profile, with so many ordinary pages a rank."""

    def build(arena_bytes: int) -> ArenaMap:
        return ArenaMap.build(
            SMOL, num_ranks=ranks, page_size=page_size, elem_bytes=4, arena_bytes=arena_bytes
        )

    trial = build(1 << 31)
    arena = build((trial.ordinary[0] + pages) * trial.slot_bytes)
    fleet = Fleet(
        model=cost_model(ranks=ranks),
        capacities={layout: Capacity.of(arena, RULES[layout]) for layout in STANDARD_LAYOUTS},
        arena=arena,
        groups=PAIR,
        chunk_tokens=256,
        max_running=32,
    )
    return replace(fleet, **settings)  # type: ignore[arg-type]


def made(name: str, requests: int, *, rate: float = 1.0, lengths: float = 0.1, seed: int = 1) -> Workload:
    return generate(
        name, random.Random(seed), Size(requests=requests, rate=rate, scale=Scale(lengths=lengths))
    )


def batch_of(count: int, *, prompt: int, output: int, at: float = 0.0, first_key: int = 0) -> list[Request]:
    return [
        Request(
            key=first_key + index, arrival_s=at, prompt_tokens=prompt, output_tokens=output, max_tokens=output
        )
        for index in range(count)
    ]


def simulated(
    fleet: Fleet, workload: Workload, *, course: Course | None = None, detail: Detail = Detail.FAST
) -> Ledger:
    return Cluster(fleet, course or policy_course(fleet, QUICK), detail=detail).run(workload)


def assert_same_course(mine: Ledger, theirs: Ledger) -> None:
    """The same switches, placements and order of ends, at the same times."""

    def made(ledger: Ledger) -> list[tuple[object, ...]]:
        return [(s.group, s.layout_from, s.layout_to, s.mode, s.ahead_steps) for s in ledger.switches]

    assert made(mine) == made(theirs)
    assert [(t.key, t.groups) for t in mine.finished] == [(t.key, t.groups) for t in theirs.finished]
    assert mine.refused == theirs.refused
    assert mine.steps == theirs.steps
    pairs = zip(mine.finished, theirs.finished, strict=True)
    assert all(
        abs(a.first_s - b.first_s) < 1e-6 and abs(a.finished_s - b.finished_s) < 1e-6 for a, b in pairs
    )
    for a, b in zip(mine.switches, theirs.switches, strict=True):
        assert abs(a.time_s - b.time_s) < 1e-6
        assert abs(a.exposed_s - b.exposed_s) < 1e-9
        assert abs(a.ahead_s - b.ahead_s) < 1e-9
