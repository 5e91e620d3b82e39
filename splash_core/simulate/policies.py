"""What a policy document says of each simulated group, at each moment of the simulated clock.

Invariant: as leaders resolve it, by phase, the group's own section and calendars; what cannot hold is refused
by name.
"""

from collections.abc import Callable
from dataclasses import dataclass

from splash_core.errors import ConfigError
from splash_core.policy.config import GroupPolicy, policy_at
from splash_core.policy.document import PolicyDocument
from splash_core.policy.in_force import not_offered, why_not
from splash_core.policy.snapshot import Phase
from splash_core.scheduling.roles import Role
from splash_core.simulate.fleet import Fleet

Said = Callable[[float], GroupPolicy]
"""What holds for a group at a simulated time."""

PHASES = {Role.PREFILL: Phase.PREFILL, Role.DECODE: Phase.DECODE, Role.COMBINED: Phase.DECODE}
"""Whose policy a group follows; a combined one, like its leader, has a single setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """A document, and when the simulated clock begins."""

    document: PolicyDocument = PolicyDocument()
    start_s: float | None = None
    """Seconds since the epoch at simulated time 0; calendars need it."""

    def warnings(self, fleet: Fleet) -> tuple[str, ...]:
        """What the document says and no simulated group heeds."""
        names, offered, said = fleet.names, tuple(fleet.capacities), self.document
        found = [
            f"{where}: no simulated group is called {name!r}; there are {', '.join(names)}"
            for where, name in said.named_groups.items()
            if name not in names
        ]
        if fleet.combined and said.prefill.to_plain():
            found.append("prefill: no simulated group follows it; combined ones follow [decode]")
        if said.trial is not None:
            found.append("canary: it is not tried here")
        for name, role in names.items():
            if odd := not_offered(said, phase=PHASES[role], group=name, offered=offered):
                found.append(f"allowed: {', '.join(odd)} without effect for {name}, which cannot run it")
        return tuple(found)

    def of(self, fleet: Fleet, role: Role, group: str) -> Said:
        """The policy of one group of a fleet.

        Raises:
            ConfigError: the document pins the group where it cannot be, or has calendars without a start.
        """
        phase = PHASES[role]
        if reason := why_not(self.document, phase=phase, group=group, offered=tuple(fleet.capacities)):
            raise ConfigError(f"--policy: {reason}")

        def at(instant_s: float) -> GroupPolicy:
            return policy_at(self.document, phase=phase, group=group, instant_s=instant_s)

        if not any(section.calendar for section in self.document.sections(phase, group)):
            always = at(0.0)
            return lambda _now: always
        if self.start_s is None:
            raise ConfigError(
                f"--policy has a calendar for {group}; say with --start when the workload begins"
            )
        start_s = self.start_s
        return lambda now: at(start_s + now)
