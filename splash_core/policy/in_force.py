"""A policy document as one group has it: its number, and what it says of this group now.

Invariants: a group only goes on to higher numbers; a document that could pin the group where it cannot be is
refused as a whole.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from splash_core.errors import Conflict
from splash_core.layout.layout import Layout
from splash_core.policy.config import GroupPolicy, policy_at
from splash_core.policy.document import PolicyDocument
from splash_core.policy.snapshot import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInForce:
    """One version in one group."""

    phase: Phase
    group: str
    document: PolicyDocument
    number: int = 0
    """Of the router's version; 0: what the group was started with."""
    digest: str = ""
    """Of the document, as its sender has it."""
    trying: bool = False
    """Whether the document's canary is tried here."""

    def at(self, instant_s: float) -> GroupPolicy:
        """What holds at an instant, in seconds since the epoch."""
        return policy_at(
            self.document, phase=self.phase, group=self.group, instant_s=instant_s, trying=self.trying
        )

    @property
    def may_pin(self) -> bool:
        """True where the document pins the group, or comes to do so at some hour."""
        pins = self.document.ever("pin", phase=self.phase, group=self.group)
        return any(pin is not None for pin in pins)

    def check_follows(self, earlier: "PolicyInForce") -> None:
        """Return if this may replace `earlier`.

        Raises:
            Conflict: its number is lower, or the same with another document.
        """
        same = (self.number, self.digest) == (earlier.number, earlier.digest)
        if self.number <= earlier.number and not same:
            raise Conflict(
                f"policy version {earlier.number} ({earlier.digest or 'as started'}) is in force in "
                f"{self.group}; version {self.number} ({self.digest}) does not follow it"
            )


def not_offered(
    document: PolicyDocument, *, phase: Phase, group: str, offered: Collection[Layout]
) -> tuple[Layout, ...]:
    """Layouts that a document comes to allow a group by name and that it does not offer: without effect."""
    lists = document.ever("allowed", phase=phase, group=group)
    named = dict.fromkeys(layout for allowed in lists for layout in cast("tuple[Layout, ...]", allowed))
    return tuple(layout for layout in named if layout not in offered)


def pins_not_allowed(document: PolicyDocument) -> list[str]:
    """Where a document pins a group where it does not allow: valid, as pins go before, but maybe a slip."""
    found: dict[str, None] = {}
    names = {"", *document.named_groups.values()}
    for phase, group in ((phase, name) for phase in Phase for name in sorted(names)):
        lists = cast("list[tuple[Layout, ...]]", document.ever("allowed", phase=phase, group=group))
        allowed = list(dict.fromkeys(layout for layouts in lists for layout in layouts))
        for pin in document.ever("pin", phase=phase, group=group):
            if lists and pin is not None and pin not in allowed:
                found[f"pin: {pin} is not among the allowed {', '.join(allowed)}; the pin holds"] = None
    return list(found)


def why_not(document: PolicyDocument, *, phase: Phase, group: str, offered: Collection[Layout]) -> str:
    """Why a group that offers certain layouts cannot take a document, or an empty text."""
    for pin in document.ever("pin", phase=phase, group=group):
        if pin is not None and pin not in offered:
            return f"pin: {group} does not offer {pin}; it offers {', '.join(offered)}"
    for allowed in document.ever("allowed", phase=phase, group=group):
        layouts = cast("tuple[Layout, ...]", allowed)
        if not set(layouts) & set(offered):
            return f"allowed: {group} offers none of {', '.join(layouts)}; it offers {', '.join(offered)}"
    trial = document.trial
    if trial is not None and trial.group == group and (reason := trial.unmeasured(phase)):
        return f"canary.metric: {reason}"
    return ""
