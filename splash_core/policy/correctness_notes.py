"""What the correctness canary remembers, what is to be asked next, and what follows from an answer. Pure.

    no reference ──▶ two rounds that agree ──▶ reference
    reference ──▶ a switch, a restart, or the period is over ──▶ a round ──▶ SAME
                                                                   └─▶ again at once ──▶ SAME (odd) | DRIFT

Invariants: a reference never changes; a group's good mark is one under which answers were as in a reference;
what has drifted is held in the layout of its last good mark, else where it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from splash_core.policy.correctness import Answer, AnswerComparison, compare, tolerance_of
from splash_core.policy.snapshot import Phase

PairName = tuple[str, str]
"""Names of a prefill and a decode group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMark:
    """A group as it was when it was asked."""

    group: str
    phase: Phase
    incarnation: str
    epoch: int
    layout: str
    pinned: str = ""
    """The layout that it is held in, if any."""

    def is_as(self, other: "GroupMark | None") -> bool:
        """Whether it has neither switched nor restarted since."""
        return other is not None and (self.incarnation, self.epoch) == (other.incarnation, other.epoch)

    def switched_since(self, other: "GroupMark | None") -> bool:
        """Whether it is in the same life, and has switched."""
        return other is not None and self.incarnation == other.incarnation and self.epoch != other.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMark:
    """Two groups that serve together, and what they serve."""

    model: str
    """Fingerprint of the checkpoint."""
    dtype: str
    prompts: tuple[tuple[int, ...], ...]
    """What they are asked."""
    prefill: GroupMark
    decode: GroupMark

    @property
    def name(self) -> PairName:
        """Of the pair."""
        return self.prefill.group, self.decode.group

    @property
    def groups(self) -> tuple[GroupMark, GroupMark]:
        """Both."""
        return self.prefill, self.decode

    def asks_as(self, other: "PairMark") -> bool:
        """Whether answers of the two can be compared."""
        return (self.model, self.dtype, self.prompts) == (other.model, other.dtype, other.prompts)

    @property
    def layouts(self) -> str:
        """As people read them."""
        return ", ".join(f"{mark.group} in {mark.layout}" for mark in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Answers to all prompts, and the pair as it was just before."""

    time_s: float
    """Since the epoch."""
    mark: PairMark
    answers: tuple[Answer, ...]


class Due(StrEnum):
    """Why a pair is to be asked."""

    FIRST = "first answers"
    SWITCH = "a switch"
    RESTART = "a restart"
    PERIOD = "the period"


class Verdict(StrEnum):
    """What an answer amounts to."""

    REFERENCE = "REFERENCE"
    SAME = "SAME"
    DRIFT = "DRIFT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check has found."""

    verdict: Verdict
    due: Due
    round: Round
    """The one that decided."""
    comparison: AnswerComparison
    odd: AnswerComparison | None = None
    """A difference that did not come again when it was asked at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What is done with one group that may be at fault."""

    mark: GroupMark
    to: str
    """The layout to hold it in; empty: it is left alone."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryNotes:
    """All that is remembered. Fresh ones know nothing."""

    references: Mapping[PairName, Round] = field(default_factory=dict[PairName, Round])
    checked: Mapping[str, GroupMark] = field(default_factory=dict[str, GroupMark])
    """Groups as they were at their newest check."""
    good: Mapping[str, GroupMark] = field(default_factory=dict[str, GroupMark])
    """Groups as they were when answers were last as they should be."""
    asked_s: Mapping[PairName, float] = field(default_factory=dict[PairName, float])
    """When a pair's newest check ended, on the caller's monotonic clock."""

    def reference(self, mark: PairMark) -> Round | None:
        """What a pair's answers are compared with: of the model and element type that it has now."""
        found = self.references.get(mark.name)
        return found if found is not None and found.mark.asks_as(mark) else None

    def due(self, mark: PairMark, *, now_s: float, every_s: float) -> Due | None:
        """Why a pair is to be asked now; None where it is not.

        Args:
            mark: the pair as it is.
            now_s: on the clock of `asked_s`.
            every_s: the period.
        """
        if self.reference(mark) is None:
            return Due.FIRST
        changed = [group for group in mark.groups if not group.is_as(self.checked.get(group.group))]
        if any(group.switched_since(self.checked.get(group.group)) for group in changed):
            return Due.SWITCH
        if changed:
            return Due.RESTART
        asked_s = self.asked_s.get(mark.name)
        return Due.PERIOD if asked_s is None or now_s - asked_s >= every_s else None

    def after(self, finding: Finding, *, now_s: float) -> "CanaryNotes":
        """With what a check has found."""
        mark = finding.round.mark
        marks = {group.group: group for group in mark.groups}
        known = replace(self, checked={**self.checked, **marks}, asked_s={**self.asked_s, mark.name: now_s})
        if finding.verdict is Verdict.DRIFT:
            return known
        known = replace(known, good={**self.good, **marks})
        if finding.verdict is Verdict.REFERENCE:
            return replace(known, references={**self.references, mark.name: finding.round})
        return known

    def remedies(self, finding: Finding) -> tuple[Remedy, ...]:
        """What to do about a drift: back to the last good layout what has switched since, else hold all."""
        marks = finding.round.mark.groups
        switched = [mark for mark in marks if mark.switched_since(self.good.get(mark.group))]
        return tuple(self._remedy(mark) for mark in switched or marks)

    def _remedy(self, mark: GroupMark) -> Remedy:
        good = self.good.get(mark.group)
        since = (
            f"{mark.group} has switched since the last good answers"
            if mark.switched_since(good)
            else (f"no switch of {mark.group} since the last good answers")
        )
        to = good.layout if good is not None and mark.switched_since(good) else mark.layout
        if mark.pinned:
            return Remedy(
                mark=mark, to="", reason=f"{since}; it is pinned to {mark.pinned} already, and left so"
            )
        if to == mark.layout:
            return Remedy(mark=mark, to=to, reason=f"{since}; held in {to}, where it is")
        return Remedy(mark=mark, to=to, reason=f"{since}, from {to} to {mark.layout}; switched back and held")


def judge(due: Due, reference: Round | None, rounds: tuple[Round, ...]) -> Finding | None:
    """What rounds of one check amount to, the newest last; None: ask again at once.

    Args:
        due: why the pair was asked.
        reference: of the pair; None: the first answers are to become it.
        rounds: of this check.
    """
    if len(rounds) < (2 if reference is None else 1):
        return None
    tolerance = tolerance_of(rounds[-1].mark.dtype)
    pairs = pairwise(rounds) if reference is None else ((reference, seen) for seen in rounds)
    found = [compare(one.answers, other.answers, tolerance=tolerance) for one, other in pairs]
    if found[-1].drifted and len(found) < 2:
        return None
    as_it_should_be = Verdict.REFERENCE if reference is None else Verdict.SAME
    verdict = Verdict.DRIFT if found[-1].drifted else as_it_should_be
    odd = found[0] if len(found) > 1 and verdict is not Verdict.DRIFT else None
    return Finding(verdict=verdict, due=due, round=rounds[-1], comparison=found[-1], odd=odd)
