"""What outlives a router of its probes: references and good marks, as a text that groups keep for it. Pure.

Invariant: of two references for one question the older one counts, and none that is older than the newest
reset; so whatever routers and groups remember comes to one set, in whatever order they are heard.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from splash_core.errors import ConfigError
from splash_core.policy.codec import decode, encode
from splash_core.policy.correctness_notes import GroupMark, ProbeNotes, Round

_FORMAT = 1
_OLDER = 4
"""Newest references of models that are served no longer, for each element type and set of prompts."""
_OLDER_IN_ALL = 16
"""Of 30 KiB each: a group keeps some 60."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodMark:
    """A group as it was when its answers were last as they should be."""

    model: str
    dtype: str
    mark: GroupMark


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeMemory:
    """What one router knew."""

    reset_s: float = 0.0
    """When an operator last had everything forgotten, since the epoch."""
    references: tuple[Round, ...] = ()
    good: tuple[GoodMark, ...] = ()

    def to_text(self) -> str:
        """For a group to keep."""
        return json.dumps({"format": _FORMAT, "memory": encode(self)}, sort_keys=True)


def memory_of(notes: ProbeNotes, *, reset_s: float) -> ProbeMemory:
    """What of a router's notes is worth keeping."""
    good = sorted(notes.good.items())
    return ProbeMemory(
        reset_s=reset_s,
        references=notes.references,
        good=tuple(GoodMark(model=model, dtype=dtype, mark=mark) for (_, model, dtype), mark in good),
    )


def memory_from(text: str) -> ProbeMemory:
    """What a group has kept.

    Raises:
        ConfigError: it is of another version of Splash, or no memory at all.
    """
    try:
        told: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"what is kept is no JSON: {error}") from error
    if not isinstance(told, dict) or told.get("format") != _FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise ConfigError(f"what is kept is not of format {_FORMAT}")
    return decode(ProbeMemory, told.get("memory"), where="memory")  # pyright: ignore[reportUnknownMemberType]


def recalled(
    notes: ProbeNotes, memories: Sequence[ProbeMemory], *, reset_s: float
) -> tuple[ProbeNotes, float]:
    """Notes with what groups have kept, and when the newest reset was.

    Args:
        notes: a router's own: of marks they are better known.
        memories: of groups.
        reset_s: the newest reset that the router knows.
    """
    newest_s = max((memory.reset_s for memory in memories), default=0.0)
    if newest_s > reset_s:
        notes, reset_s = replace(notes, good={}), newest_s
    kept = [memory for memory in memories if memory.reset_s == reset_s]
    references = _oldest((*notes.references, *(one for memory in kept for one in memory.references)), reset_s)
    good = {(one.mark.group, one.model, one.dtype): one.mark for memory in kept for one in memory.good}
    return replace(notes, references=references, good={**good, **notes.good}), reset_s


def trimmed(notes: ProbeNotes, *, served: Collection[tuple[str, str]]) -> ProbeNotes:
    """Notes without old references of what is served no longer, and without good marks that have none.

    Args:
        notes: the same ones are given back where nothing is left out.
        served: models and element types that groups have now.
    """
    older: Counter[object] = Counter()
    references: list[Round] = []
    for one in sorted(notes.references, key=lambda one: one.time_s, reverse=True):
        mark = one.mark
        if (mark.model, mark.dtype) not in served:
            asked = mark.dtype, mark.prompts
            if older[asked] == _OLDER or older.total() == _OLDER_IN_ALL:
                continue
            older[asked] += 1
        references.append(one)
    known = {(one.mark.model, one.mark.dtype) for one in references}
    good = {name: mark for name, mark in notes.good.items() if name[1:] in known}
    if (len(references), len(good)) == (len(notes.references), len(notes.good)):
        return notes
    return replace(notes, references=tuple(reversed(references)), good=good)


def _oldest(rounds: Iterable[Round], reset_s: float) -> tuple[Round, ...]:
    """One reference for each question, none of before the reset."""
    found: list[Round] = []
    for one in sorted(rounds, key=lambda one: one.time_s):
        if one.time_s >= reset_s and not any(one.mark.asks_as(other.mark) for other in found):
            found.append(one)
    return tuple(found)
