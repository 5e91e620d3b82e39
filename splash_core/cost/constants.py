"""θ as named positive numbers that a fit may change, and a profile with some of them changed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from splash_core.cost.links import Collective, LinkRate
from splash_core.cost.profile import HardwareProfile
from splash_core.cost.theta import Overhead, Rate, constants_of

_CONSTANTS = constants_of(HardwareProfile)
RATES = tuple(name for name, constant in _CONSTANTS.items() if isinstance(constant, Rate))
OVERHEADS: Mapping[str, Overhead] = {
    name: constant for name, constant in _CONSTANTS.items() if isinstance(constant, Overhead)
}
APART = "apart"
"""1 − overlap: what a roofline adds of its shorter side."""


@dataclass(frozen=True, slots=True)
class LinkName:
    """A constant of one rate of one kind of collective."""

    kind: Collective
    place: int
    field: str
    """`latency_s` or `bps`."""

    def __str__(self) -> str:
        return f"{self.kind.value}.{self.place}.{self.field}"


Name = str | LinkName


def names_of(profile: HardwareProfile) -> tuple[Name, ...]:
    """All that a profile has, its kinds of collectives included."""
    links = tuple(
        LinkName(Collective(kind), place, name)
        for kind, rates in sorted(profile.collectives.items())
        for place in range(len(rates))
        for name in ("latency_s", "bps")
    )
    return (*RATES, *OVERHEADS, APART, *links)


def value_of(profile: HardwareProfile, name: Name) -> float:
    """One constant."""
    if isinstance(name, LinkName):
        return getattr(profile.collectives[name.kind][name.place], name.field)
    return 1 - profile.overlap if name == APART else getattr(profile, name)


def with_values(profile: HardwareProfile, values: Mapping[Name, float]) -> HardwareProfile:
    """The profile with other constants."""
    collectives = dict(profile.collectives)
    plain: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(name, LinkName):
            rates = list(collectives[name.kind])
            rates[name.place] = _changed(rates[name.place], name.field, value)
            collectives[name.kind] = tuple(rates)
        elif name == APART:
            plain["overlap"] = 1 - min(value, 1.0)
        else:
            plain[name] = value
    return replace(profile, collectives=collectives, **plain)


def _changed(rate: LinkRate, field: str, value: float) -> LinkRate:
    return replace(rate, latency_s=value) if field == "latency_s" else replace(rate, bps=value)
