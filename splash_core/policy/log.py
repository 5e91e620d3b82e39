"""A bounded log of decisions in which a run of equal HOLDs takes one place."""

from collections import deque
from dataclasses import replace

from splash_core.policy.decision import Decision, DecisionVerdict


class DecisionLog:
    """The last decisions of a group, oldest first. A repeated HOLD replaces the one before it."""

    def __init__(self, capacity: int = 256) -> None:
        self._entries: deque[Decision] = deque(maxlen=capacity)

    def add(self, decision: Decision) -> None:
        """Append, or update the last entry when nothing but numbers changed."""
        last = self._entries[-1] if self._entries else None
        if last is None or not _repeats(last, decision):
            self._entries.append(decision)
            return
        times = last.inputs.get("repeats", 1)
        since = last.inputs.get("since", last.time_s)
        inputs = {**decision.inputs, "repeats": times + 1, "since": since}
        self._entries[-1] = replace(decision, inputs=inputs)

    def last(self, count: int | None = None) -> tuple[Decision, ...]:
        """The newest `count` entries (all without a count), oldest first."""
        entries = tuple(self._entries)
        return entries if count is None else entries[len(entries) - min(count, len(entries)) :]


def _repeats(last: Decision, decision: Decision) -> bool:
    return (
        last.verdict is decision.verdict
        and decision.verdict is not DecisionVerdict.SWITCH
        and last.cause is decision.cause
        and last.layout_from is decision.layout_from
        and last.layout_to is decision.layout_to
        and last.inputs.get("policy_version") == decision.inputs.get("policy_version")
    )
