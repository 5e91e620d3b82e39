"""What is remembered of probes, what is to be asked next, and what follows from an answer. Pure.

    no reference ──▶ two rounds that agree ──▶ reference
    reference ──▶ a new pair, a switch, a restart, or the period is over ──▶ a round ──▶ SAME
                                                          └─▶ again at once ──▶ SAME (odd) | DRIFT

Invariants: a question has one reference, whichever pair is asked, and it never changes; a group's good mark
is one under which answers were as in a reference, or became the first one of its model; what has drifted is
held in the layout of its last good mark, else where it is.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from splash_core.policy.correctness import Answer, AnswerComparison, compare, tolerance_of
from splash_core.policy.snapshot import Phase

PairName = tuple[str, str]
"""Names of a prefill and a decode group."""
GoodName = tuple[str, str, str]
"""A group, the checkpoint and the element type that it serves."""


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

    def switched_since(self, other: "GroupMark") -> bool:
        """Whether it is in the same life, and has switched."""
        return self.incarnation == other.incarnation and self.epoch != other.epoch

    def left(self, good: "GroupMark") -> bool:
        """Whether it has switched since it was good, or is in another layout, as after a restart."""
        begun = good.epoch if self.incarnation == good.incarnation else 0
        return self.epoch != begun or self.layout != good.layout


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

    def good_name(self, group: GroupMark) -> GoodName:
        """Under what the notes have a group's good mark while it serves what the pair serves."""
        return group.group, self.model, self.dtype

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
    """Of this pair; they become the reference where there is none."""
    SWITCH = "a switch"
    RESTART = "a restart"
    PERIOD = "the period"


class ProbeVerdict(StrEnum):
    """What an answer amounts to."""

    REFERENCE = "REFERENCE"
    SAME = "SAME"
    DRIFT = "DRIFT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinding:
    """What a check has found."""

    verdict: ProbeVerdict
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
class Asked:
    """The newest check of a pair."""

    at_s: float
    """When it ended, on the caller's monotonic clock."""
    mark: PairMark
    verdict: ProbeVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeNotes:
    """All that is remembered. Fresh ones know nothing."""

    references: tuple[Round, ...] = ()
    """One for each question: no pair has a reference of its own, for what is wrong now would become it."""
    checked: Mapping[str, GroupMark] = field(default_factory=dict[str, GroupMark])
    """Groups as they were at their newest check."""
    good: Mapping[GoodName, GroupMark] = field(default_factory=dict[GoodName, GroupMark])
    """Groups as they were when answers were last as they should be."""
    asked: Mapping[PairName, Asked] = field(default_factory=dict[PairName, Asked])

    def reference(self, mark: PairMark) -> Round | None:
        """What a pair's answers are compared with: of the model, element type and prompts of now."""
        return next((found for found in self.references if found.mark.asks_as(mark)), None)

    def asked_s(self, pair: PairName) -> float:
        """When a pair's newest check ended; long ago where there was none."""
        return self.asked[pair].at_s if pair in self.asked else -math.inf

    def due(self, mark: PairMark, *, now_s: float, every_s: float) -> Due | None:
        """Why a pair is to be asked now; None where it is not.

        Args:
            mark: the pair as it is.
            now_s: on the clock of `Asked.at_s`.
            every_s: the period, also between two attempts at a reference.
        """
        asked = self.asked.get(mark.name)
        seen = self.checked
        if asked is not None and asked.verdict is ProbeVerdict.DRIFT:
            # Whether it says right things again, no other pair can tell.
            seen = {group.group: group for group in asked.mark.groups}
        before = [(group, seen.get(group.group)) for group in mark.groups]
        changed = [(now, then) for now, then in before if then is not None and not now.is_as(then)]
        if any(now.switched_since(then) for now, then in changed):
            return Due.SWITCH
        if changed:
            return Due.RESTART
        if asked is None or not asked.mark.asks_as(mark):
            return Due.FIRST
        if now_s - asked.at_s < every_s:
            return None
        return Due.FIRST if self.reference(mark) is None else Due.PERIOD

    def after(self, finding: ProbeFinding, *, now_s: float) -> "ProbeNotes":
        """With what a check has found."""
        mark = finding.round.mark
        checked = {**self.checked, **{group.group: group for group in mark.groups}}
        asked = {**self.asked, mark.name: Asked(at_s=now_s, mark=mark, verdict=finding.verdict)}
        known = replace(self, checked=checked, asked=asked)
        if finding.verdict is ProbeVerdict.DRIFT:
            return known
        seen = {mark.good_name(group): group for group in mark.groups}
        if finding.verdict is ProbeVerdict.SAME:
            return replace(known, good={**self.good, **seen})
        # Nothing was compared with a reference: what was good before is better known.
        return replace(known, good={**seen, **self.good}, references=(*self.references, finding.round))

    def without(self, groups: Collection[str]) -> "ProbeNotes":
        """Without what is known of groups that have gone; references are not theirs."""
        return replace(
            self,
            checked={name: mark for name, mark in self.checked.items() if name not in groups},
            good={name: mark for name, mark in self.good.items() if name[0] not in groups},
            asked={pair: asked for pair, asked in self.asked.items() if not {*pair} & {*groups}},
        )

    def remedies(self, finding: ProbeFinding) -> tuple[Remedy, ...]:
        """What to do about a drift: back to the last good layout what has left it since, else hold all."""
        pair = finding.round.mark
        marks = [(mark, self.good.get(pair.good_name(mark))) for mark in pair.groups]
        left = [(mark, good) for mark, good in marks if good is not None and mark.left(good)]
        return tuple(_remedy(mark, good) for mark, good in left or marks)


def _remedy(mark: GroupMark, good: GroupMark | None) -> Remedy:
    since = _since(mark, good)
    if mark.pinned:
        return Remedy(mark=mark, to="", reason=f"{since}; it is pinned to {mark.pinned} already, and left so")
    to = mark.layout if good is None else good.layout
    if to == mark.layout:
        return Remedy(mark=mark, to=to, reason=f"{since}; held in {to}, where it is")
    return Remedy(mark=mark, to=to, reason=f"{since}, from {to} to {mark.layout}; switched back and held")


def _since(mark: GroupMark, good: GroupMark | None) -> str:
    """What has become of a group since its last good answers, in words."""
    if good is None:
        return f"{mark.group} has given no good answers before"
    if mark.incarnation == good.incarnation:
        switched = mark.switched_since(good)
        told = f"{mark.group} has switched" if switched else f"no switch of {mark.group}"
    elif mark.left(good):
        told = f"{mark.group} has restarted and changed its layout"
    else:
        told = f"{mark.group} has restarted and not switched"
    return f"{told} since the last good answers"


def judge(due: Due, reference: Round | None, rounds: tuple[Round, ...]) -> ProbeFinding | None:
    """What rounds of one check amount to, the newest last; None: ask again at once.

    Args:
        due: why the pair was asked.
        reference: of what it is asked; None: the first answers are to become it.
        rounds: of this check.
    """
    if len(rounds) < (2 if reference is None else 1):
        return None
    tolerance = tolerance_of(rounds[-1].mark.dtype)
    pairs = pairwise(rounds) if reference is None else ((reference, seen) for seen in rounds)
    found = [compare(one.answers, other.answers, tolerance=tolerance) for one, other in pairs]
    if found[-1].drifted and len(found) < 2:
        return None
    as_it_should_be = ProbeVerdict.REFERENCE if reference is None else ProbeVerdict.SAME
    verdict = ProbeVerdict.DRIFT if found[-1].drifted else as_it_should_be
    odd = found[0] if len(found) > 1 and verdict is not ProbeVerdict.DRIFT else None
    return ProbeFinding(verdict=verdict, due=due, round=rounds[-1], comparison=found[-1], odd=odd)
