"""What all groups of a simulated run share, and whom they tell what has become of a request."""

from collections.abc import Callable
from dataclasses import dataclass

from splash_core.simulate.agenda import Agenda
from splash_core.simulate.cores import Cores
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.ledger import Ledger

ANY_STEPS = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Called by groups, with the key of a request."""

    leased: Callable[[int], None]
    """Pages are promised."""
    prefilled: Callable[[int, str, float], None]
    """The prompt is computed, by the group named; its last pages have left at the time given."""
    finished: Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Of one run."""

    fleet: Fleet
    agenda: Agenda
    ledger: Ledger
    told: Told
    cores: Cores
    most_steps: int = ANY_STEPS
    """At most so many steps at once."""
