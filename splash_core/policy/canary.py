"""The life of a canary: wait for its group, watch, try, compare, conclude. A pure state machine.

    WAITING ──▶ TRYING ──▶ PROMOTE | ROLL_BACK     compared with the other groups of its phase
        └─▶ WATCHING ──▶ TRYING ──▶ …              alone in its phase: with itself before

Invariants: what is tried is in force only while TRYING; every canary ends with one record; whatever cannot
be compared (too few steps, the group restarted) is rolled back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from splash_core.policy.canary_record import CanaryComparison, CanaryRecord, CanaryVerdict
from splash_core.policy.snapshot import Phase
from splash_core.policy.step_totals import StepTotals
from splash_core.policy.trial import Trial

_PATIENCE = 4.0
"""A period with too few steps is given up at this multiple of its length."""


class Stage(StrEnum):
    """Where a canary is."""

    WAITING = "waiting"
    """Its group has not been heard of."""
    WATCHING = "watching"
    """Alone in its phase: how it does without the change."""
    TRYING = "trying"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One group, as its leader tells."""

    phase: Phase
    incarnation: str
    trying: bool
    """Whether it says that what is tried is in force."""
    totals: StepTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryState:
    """What a canary remembers. A fresh one waits."""

    stage: Stage = Stage.WAITING
    since_s: float = 0.0
    """When the stage began to count."""
    phase: Phase | None = None
    marks: Mapping[str, Seen] = field(default_factory=dict[str, Seen])
    """The groups as they were then: the canary's, and those that it is compared with."""
    before: StepTotals | None = None
    """What the group did while it was watched."""

    @property
    def trying(self) -> bool:
        """Whether the group shall run with what is tried."""
        return self.stage is Stage.TRYING


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a canary sees at one time."""

    time_s: float
    groups: Mapping[str, Seen]
    """Groups that answer."""


def advance(state: CanaryState, trial: Trial, moment: Moment) -> CanaryState | CanaryRecord:
    """The next state, or the record of the end."""
    seen = moment.groups.get(trial.group)
    if state.stage is Stage.WAITING:
        return state if seen is None else _begin(trial, moment, seen)
    mark = state.marks[trial.group]
    if seen is not None and seen.incarnation != mark.incarnation:
        if not mark.trying:
            return _begin(trial, moment, seen)
        return _end(state, trial, moment, f"{trial.group} restarted while it tried")
    if state.trying and not mark.trying:
        return _arrived(state, trial, moment, seen)
    return _measure(state, trial, moment, seen)


def _begin(trial: Trial, moment: Moment, seen: Seen) -> CanaryState | CanaryRecord:
    """The group is there: try at once beside others of its phase, or watch it first."""
    if reason := trial.unmeasured(seen.phase):
        return _end(CanaryState(phase=seen.phase), trial, moment, reason)
    peers = _peers(trial, moment, seen.phase)
    stage = Stage.TRYING if peers else Stage.WATCHING
    marks = {trial.group: replace(seen, trying=False), **peers}
    return CanaryState(stage=stage, since_s=moment.time_s, phase=seen.phase, marks=marks)


def _arrived(
    state: CanaryState, trial: Trial, moment: Moment, seen: Seen | None
) -> CanaryState | CanaryRecord:
    """Counting begins when the group says that it tries."""
    if seen is None or not seen.trying:
        late = moment.time_s - state.since_s > _PATIENCE * max(trial.period_s, 1.0)
        reason = f"{trial.group} did not take what it was to try"
        return _end(state, trial, moment, reason) if late else state
    peers = {} if state.before is not None else _peers(trial, moment, seen.phase)
    return replace(state, since_s=moment.time_s, marks={trial.group: seen, **peers})


def _measure(
    state: CanaryState, trial: Trial, moment: Moment, seen: Seen | None
) -> CanaryState | CanaryRecord:
    """Let the period pass; then go on, or compare."""
    passed_s = moment.time_s - state.since_s
    if passed_s < trial.period_s:
        return state
    own = StepTotals() if seen is None else seen.totals.since(state.marks[trial.group].totals)
    if state.stage is Stage.WATCHING and seen is not None and own.samples(trial.metric) >= trial.min_steps:
        tried = {trial.group: replace(seen, trying=False)}
        return replace(state, stage=Stage.TRYING, since_s=moment.time_s, marks=tried, before=own)
    other, against = _reference(state, trial, moment)
    here, there = own.samples(trial.metric), other.samples(trial.metric)
    if min(here, there) < trial.min_steps:
        if passed_s <= _PATIENCE * trial.period_s:
            return state
        what = "prompts" if trial.metric.of_prompts else "steps"
        counted = f"{here} here, {there} {against}" if state.trying else f"{here} before the trial"
        reason = f"too few {what} to compare: {counted}; {trial.min_steps} are required"
        return _end(state, trial, moment, reason)
    comparison = CanaryComparison.of(trial, own, other, against=against)
    return _record(state, trial, moment, comparison, comparison.verdict, comparison.reason)


def _reference(state: CanaryState, trial: Trial, moment: Moment) -> tuple[StepTotals, str]:
    """What the trial is compared with, and its name."""
    if state.before is not None:
        return state.before, "by itself before"
    totals, names = StepTotals(), list[str]()
    for name, mark in state.marks.items():
        seen = moment.groups.get(name)
        if name != trial.group and seen is not None and seen.incarnation == mark.incarnation:
            totals = totals.plus(seen.totals.since(mark.totals))
            names.append(name)
    return totals, f"by {', '.join(names)}" if names else "by nobody: the other groups have gone"


def _peers(trial: Trial, moment: Moment, phase: Phase) -> dict[str, Seen]:
    return {name: seen for name, seen in moment.groups.items() if name != trial.group and seen.phase is phase}


def superseded(state: CanaryState, trial: Trial, *, time_s: float, by: str) -> CanaryRecord:
    """The record of a canary that somebody's edit has ended."""
    moment = Moment(time_s=time_s, groups={})
    return _record(state, trial, moment, None, CanaryVerdict.SUPERSEDED, f"superseded by {by}")


def _end(state: CanaryState, trial: Trial, moment: Moment, reason: str) -> CanaryRecord:
    return _record(state, trial, moment, None, CanaryVerdict.ROLL_BACK, reason)


def _record(
    state: CanaryState,
    trial: Trial,
    moment: Moment,
    comparison: CanaryComparison | None,
    verdict: CanaryVerdict,
    reason: str,
) -> CanaryRecord:
    return CanaryRecord(
        time_s=moment.time_s,
        trial=trial,
        phase=state.phase,
        verdict=verdict,
        reason=reason,
        comparison=comparison,
    )
