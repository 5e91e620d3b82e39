"""What a policy remembers between decisions: explicit, frozen, passed in and returned anew."""

from dataclasses import dataclass, replace

from splash_core.layout.layout import Layout

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """One group's memory. A fresh one knows of no switch and holds nothing."""

    pinned: Layout | None = None
    pin_tried_s: float | None = None
    """When the policy last asked to go to the pinned layout."""
    hold_until_s: float | None = None
    """A manual set keeps the policy off until then."""
    last_switch_s: float | None = None
    """When the last switch was decided, by the policy or by hand."""
    spent: tuple[tuple[float, float], ...] = ()
    """`(time_s, exposed_s)` of the policy's switches within the last minute."""
    candidate: Layout | None = None
    """The layout that the last decision preferred …"""
    streak: int = 0
    """… and for how many decisions in a row."""

    def with_pin(self, layout: Layout | None) -> "PolicyState":
        """Pinned to `layout`, or unpinned."""
        return replace(self, pinned=layout, pin_tried_s=None)

    def with_manual_switch(self, time_s: float, *, hold_s: float) -> "PolicyState":
        """After a manual set at `time_s`: the policy is off for `hold_s`."""
        return replace(self, hold_until_s=time_s + hold_s, last_switch_s=time_s, candidate=None, streak=0)

    def with_switch(self, time_s: float, *, exposed_s: float) -> "PolicyState":
        """After the policy decided to switch."""
        recent = tuple(entry for entry in self.spent if time_s - entry[0] < _MINUTE_S)
        return replace(
            self, last_switch_s=time_s, spent=(*recent, (time_s, exposed_s)), candidate=None, streak=0
        )

    def with_candidate(self, preferred: Layout | None) -> "PolicyState":
        """After a decision that preferred another layout (None: the present one)."""
        if preferred is None:
            return replace(self, candidate=None, streak=0)
        streak = self.streak + 1 if preferred is self.candidate else 1
        return replace(self, candidate=preferred, streak=streak)

    def spent_in_minute(self, time_s: float) -> float:
        """Exposed seconds that the policy has spent in the minute before `time_s`."""
        return sum(exposed for when, exposed in self.spent if time_s - when < _MINUTE_S)

    def dwell_left(self, time_s: float, dwell_s: float) -> float:
        """Seconds until the policy may switch again; 0 when it may now."""
        if self.last_switch_s is None:
            return 0.0
        return max(0.0, self.last_switch_s + dwell_s - time_s)
