"""Puts a group's managers together; each sees only what it needs."""

from collections.abc import Callable
from dataclasses import dataclass

from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageTable
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.admission import Admission
from splash_core.scheduling.attention_choice import AttentionChooser
from splash_core.scheduling.audit import Views
from splash_core.scheduling.batching import Batcher
from splash_core.scheduling.budget import StepBudget
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.holding import Present
from splash_core.scheduling.intake import Intake
from splash_core.scheduling.limits import max_request_tokens
from splash_core.scheduling.mirror import MirrorBook
from splash_core.scheduling.plan_writer import PlanWriter
from splash_core.scheduling.pushes import PushBook
from splash_core.scheduling.residency import Residency
from splash_core.scheduling.results import Retirement
from splash_core.scheduling.sequence import Roster
from splash_core.scheduling.switching import Switcher
from splash_core.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """The managers of one group."""

    limit: int
    """Most tokens of one request."""
    present: Present
    roster: Roster
    residency: Residency
    pushes: PushBook
    admission: Admission
    intake: Intake
    budget: StepBudget
    batcher: Batcher
    switcher: Switcher
    writer: PlanWriter
    retirement: Retirement
    views: Views


def assemble(
    *,
    spec: ModelSpec,
    arena: ArenaMap,
    layout: Layout,
    config: SchedulerConfig,
    clock: Callable[[], float],
    chooser: AttentionChooser,
) -> Machinery:
    """The managers of a group that starts empty, in `layout`.

    Raises:
        ConfigError: staging cannot hold one page, so that some switch or relocation would never fit.
        Infeasible: some layout cannot hold a single token.
    """
    _check_staging(config, arena)
    limit = max_request_tokens(spec, arena, config)
    present = Present(layout=layout)
    roster = Roster()
    mirrors = MirrorBook(arena.num_ranks)
    residency = Residency(table=PageTable(arena), roster=roster, mirrors=mirrors, present=present)
    pushes = PushBook(table=residency.table, roster=roster, clock=clock)
    admission = Admission(roster=roster, residency=residency, present=present, pushes=pushes, config=config)
    intake = Intake(
        roster=roster, residency=residency, admission=admission, config=config, limit=limit, clock=clock
    )
    budget = StepBudget(config.chunk_tokens)
    return Machinery(
        limit=limit,
        present=present,
        roster=roster,
        residency=residency,
        pushes=pushes,
        admission=admission,
        intake=intake,
        budget=budget,
        batcher=Batcher(
            roster=roster, residency=residency, admission=admission, budget=budget, config=config
        ),
        switcher=Switcher(
            roster=roster, residency=residency, present=present, mirrors=mirrors, pushes=pushes, config=config
        ),
        writer=PlanWriter(
            chooser=chooser, roster=roster, mirrors=mirrors, residency=residency, present=present
        ),
        retirement=Retirement(roster=roster, intake=intake, role=config.role),
        views=Views(roster=roster, residency=residency, present=present, budget=budget, config=config),
    )


def _check_staging(config: SchedulerConfig, arena: ArenaMap) -> None:
    if config.staging_bytes < arena.slot_bytes:
        raise ConfigError(
            f"staging_bytes {config.staging_bytes} is less than a page of {arena.slot_bytes} bytes; raise it"
        )
