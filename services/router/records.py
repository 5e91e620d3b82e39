"""What the router knows of one worker group, and since when.

Invariant: a record is replaced, never changed; `trouble` says in words why the group takes no requests.
"""

from dataclasses import dataclass

from splash_core.pb import control_pb2

_LEAVING = ("draining", "failed")
_SILENT_S = 10.0
"""A group that has not answered for so long keeps no other one from its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The newest description and state of the group behind one address."""

    address: str
    phase: str
    """The phase that this address was configured for."""
    description: control_pb2.GroupDescription | None = None
    state: control_pb2.GroupState | None = None
    mismatch: str | None = None
    """How its model differs from the router's, if it does."""
    clash: str | None = None
    """Which other group has its name, if one does that was here first."""
    asked_at_s: float = 0.0
    """Monotonic time at which the newest state was asked for."""
    answered_at_s: float = 0.0
    """Monotonic time of the last answer; the start of the router before the first."""
    error: str | None = None
    """Why the group cannot be reached, if it cannot."""

    @property
    def label(self) -> str:
        """The group's name, or where it should be; no two groups have the same."""
        if self.description is None:
            return f"{self.phase} at {self.address}"
        name = self.description.group
        return name if self.clash is None else f"{name} at {self.address}"

    def serves(self, *, now_s: float) -> bool:
        """Whether requests could go to it by now or soon, and so whether its name is its own."""
        of_phase = self.description is not None and self.description.phase == self.phase
        going = self.state is not None and self.state.state not in _LEAVING
        here = self.error is None and now_s - self.answered_at_s < _SILENT_S
        return of_phase and going and here and self.mismatch is None

    @property
    def refused(self) -> str | None:
        """Why this router never gives the group requests, however ready it is; None when it does."""
        return self.mismatch or self.clash

    @property
    def trouble(self) -> str | None:
        """Why the group takes no requests; None when it does."""
        if self.error is not None:
            return self.error
        if self.description is None or self.state is None:
            return "has not answered yet"
        if self.description.phase != self.phase:
            return f"is a {self.description.phase} group but was configured as {self.phase}"
        if self.refused is not None:
            return self.refused
        if self.state.state != "ready":
            return f"is {self.state.state}" + (f": {self.state.failure}" if self.state.failure else "")
        return None

    @property
    def told(self) -> str | None:
        """`trouble` with whose it is."""
        trouble = self.trouble
        if trouble is None or f"group {self.label}" in trouble or f"group at {self.address}" in trouble:
            return trouble
        return f"{self.label}: {trouble}"

    def stalled(self, *, now_s: float, limit_s: float) -> str | None:
        """Why the group is not alive: it has failed, is silent, or makes no steps while it has work."""
        if self.clash is not None and self.error is not None:
            return None  # it has moved, and answers elsewhere
        if self.state is not None and self.state.state == "failed":
            return f"has failed: {self.state.failure}"
        if self.state is not None and self.state.step_age_s > limit_s:
            return f"has work but finished no step for {self.state.step_age_s:.0f} s"
        if now_s - self.answered_at_s > limit_s:
            return f"has not answered for {now_s - self.answered_at_s:.0f} s"
        return None
