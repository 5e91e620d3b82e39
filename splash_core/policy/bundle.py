"""Replay bundles: what the policy saw, knew and concluded, so that anybody can make it decide again.

A bundle has lengths and numbers of requests and nothing of their texts. Invariant: `replay` runs the same
`decide` on what was recorded and compares every field of the decision and of the state that follows, exactly;
floats included.
"""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from splash_core.cost.model import CostModel
from splash_core.errors import ConfigError
from splash_core.policy.codec import Tree, decode, encode
from splash_core.policy.config import PolicyConfig
from splash_core.policy.decision import Decision
from splash_core.policy.snapshot import Snapshot
from splash_core.policy.state import PolicyState
from splash_core.policy.switching import decide
from splash_core.spec.fields import check_version

BUNDLE_VERSION = 3
"""Of the shape of all that is in one: a test holds it. 2: snapshots say which decode steps are recorded;
3: how much goes in one transfer."""
_WRITE_ANEW = (
    "replay it with the version of Splash that wrote it, or let `splash layout explain --bundle FILE` write "
    "a new one"
)
_KEPT = 256
_FIELDS = frozenset({"snapshot", "config", "before", "decision", "after"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One call of `decide`: arguments and results."""

    snapshot: Snapshot
    config: PolicyConfig
    before: PolicyState
    decision: Decision
    after: PolicyState


class EvaluationRecorder:
    """The newest evaluations of a group."""

    def __init__(self, model: CostModel, *, capacity: int = _KEPT) -> None:
        self.model = model
        self._kept: deque[Evaluation] = deque(maxlen=capacity)

    def decide(
        self, snapshot: Snapshot, config: PolicyConfig, state: PolicyState
    ) -> tuple[Decision, PolicyState]:
        """`switching.decide`, remembered."""
        decision, after = decide(snapshot, self.model, config, state)
        self._kept.append(
            Evaluation(snapshot=snapshot, config=config, before=state, decision=decision, after=after)
        )
        return decision, after

    def newest(self, last: int | None = None) -> Sequence[Evaluation]:
        """The newest `last` evaluations (all without a number), oldest first: frozen, for `bundle_of`."""
        kept = tuple(self._kept)
        return kept if last is None else kept[max(len(kept) - last, 0) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference:
    """Where a replay departs from what was recorded."""

    index: int
    """Of the evaluation in its bundle."""
    time_s: float
    path: str
    recorded: Tree
    replayed: Tree

    def __str__(self) -> str:
        return (
            f"evaluation {self.index} at {self.time_s:.3f} s, {self.path}: recorded {self.recorded!r}, "
            f"replayed {self.replayed!r}"
        )


def bundle_of(model: CostModel, evaluations: Iterable[Evaluation]) -> dict[str, Any]:
    """A bundle as JSON values."""
    return {
        "splash_bundle": BUNDLE_VERSION,
        "model": encode(model),
        "evaluations": [encode(evaluation) for evaluation in evaluations],
    }


def replay(bundle: object, *, where: str = "bundle") -> tuple[int, Sequence[ReplayDifference]]:
    """Decide again on everything that a bundle holds.

    Args:
        bundle: as JSON values.
        where: its name, for errors.

    Returns:
        How many evaluations it holds, and where they differ.

    Raises:
        ConfigError: it is no bundle of this version; names the place.
    """
    values = cast("dict[str, Any]", bundle) if isinstance(bundle, dict) else {}
    check_version(
        values.get("splash_bundle"), reads=BUNDLE_VERSION, what=f"{where}: the bundle", remedy=_WRITE_ANEW
    )
    model: CostModel = decode(CostModel, values.get("model"), where=f"{where}.model")
    entries = values.get("evaluations")
    if not isinstance(entries, list):
        raise ConfigError(f"{where}.evaluations: a list is required")
    recorded = cast("list[Any]", entries)
    differences: list[ReplayDifference] = []
    for index, entry in enumerate(recorded):
        differences += _replayed(model, index, entry, f"{where}.evaluations[{index}]")
    return len(recorded), differences


def _replayed(model: CostModel, index: int, entry: Any, where: str) -> list[ReplayDifference]:
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    if fields.keys() != _FIELDS:
        raise ConfigError(f"{where}: no evaluation")
    snapshot: Snapshot = decode(Snapshot, fields["snapshot"], where=f"{where}.snapshot")
    config: PolicyConfig = decode(PolicyConfig, fields["config"], where=f"{where}.config")
    before: PolicyState = decode(PolicyState, fields["before"], where=f"{where}.before")
    decision, after = decide(snapshot, model, config, before)
    found: list[ReplayDifference] = []
    for name, value in (("decision", decision), ("after", after)):
        # As text and back, like what was recorded: a tuple of counts is a list there.
        replayed = json.loads(json.dumps(encode(value)))
        found += [
            ReplayDifference(index=index, time_s=snapshot.time_s, path=path, recorded=old, replayed=new)
            for path, old, new in _differences(fields[name], replayed, name)
        ]
    return found


def _differences(old: Tree, new: Tree, path: str) -> Iterable[tuple[str, Tree, Tree]]:
    if isinstance(old, dict) and isinstance(new, dict):
        left, right = cast("dict[str, Tree]", old), cast("dict[str, Tree]", new)
        for key in sorted(left.keys() | right.keys()):
            yield from _differences(left.get(key), right.get(key), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        ours, theirs = cast("list[Tree]", old), cast("list[Tree]", new)
        if len(ours) != len(theirs):
            yield path, old, new
        for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif json.dumps(_as_read(old, new)) != json.dumps(new):
        yield path, old, new


def _as_read(old: Tree, new: Tree) -> Tree:
    """A whole number where a float belongs, as in `sum(())`, is read as the float that it is."""
    return float(old) if type(old) is int and isinstance(new, float) else old
