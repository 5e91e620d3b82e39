"""What each constant of θ is, said once: where `HardwareProfile` declares its field, as an annotation.

What reads profiles, fits them and shows them derives its lists from there, so that no constant can be left
out of one. Invariant: every numeric field of a profile has exactly one `Constant`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Rate:
    """Above 0; fitted."""

    shown: str
    """What it is called in tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Seconds, not negative; fitted."""

    shown: str
    first: float
    """Where the search begins, in units of the device's own overhead per layer: too small a one would never
    grow, as nothing depends on its logarithm."""


@dataclass(frozen=True, slots=True)
class Part:
    """From 0 to 1; fitted, as what it lacks to 1."""

    shown: str


@dataclass(frozen=True, slots=True)
class Link:
    """Above 0; follows from the fitted rates of collectives."""


@dataclass(frozen=True, slots=True)
class Given:
    """Not negative; the fit to steps leaves it as it is."""


@dataclass(frozen=True, slots=True)
class Count:
    """Whole, not negative; no fit changes it."""


Constant = Rate | Overhead | Part | Link | Given | Count


@cache
def constants_of(profile: type) -> Mapping[str, Constant]:
    """The constants that a class declares, by name, in its order."""
    found: dict[str, Constant] = {}
    for name, hint in get_type_hints(profile, include_extras=True).items():
        said: tuple[Any, ...] = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        for one in said:
            if isinstance(one, Constant):
                found[name] = one
    return found
