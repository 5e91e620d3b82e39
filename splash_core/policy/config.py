"""The operator's settings of the layout policy, per phase, from one TOML file.

    [decode]
    allowed = ["TP", "DP", "DOP"]
    margin = 0.05
    dwell_s = 10

Invariant: an unknown key, a wrong type or a value out of range is an error that names the key; nothing
is ignored silently. A section `[all]` gives defaults to both phases.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.policy.snapshot import Phase

DEFAULT_HORIZON_STEPS = 512


def _not_negative(value: float) -> bool:
    return value >= 0


# NaN compares false with everything, so it is in no range.
_RANGES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("allowed", lambda layouts: len(layouts) > 0, "must name at least one layout"),
    ("margin", lambda value: 0 <= value < 10, "must be in [0, 10)"),
    ("dwell_s", _not_negative, "must not be negative"),
    ("interval_s", _not_negative, "must not be negative"),
    ("confirm", lambda value: value >= 1, "must be at least 1"),
    ("horizon_steps", lambda value: value >= 1, "must be at least 1"),
    ("exposed_ms_per_minute", _not_negative, "must not be negative"),
    ("itl_bound_ms", lambda value: value is None or value > 0, "must be above 0"),
    ("ttft_bound_ms", lambda value: value is None or value > 0, "must be above 0"),
    ("hold_s", _not_negative, "must not be negative"),
    ("max_age_s", lambda value: value > 0, "must be above 0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """One phase's policy."""

    allowed: tuple[Layout, ...] = tuple(Layout)
    """Layouts that the policy may choose; a manual set or a pin may choose others."""
    margin: float = 0.05
    """By how much (relative) another layout must lead before a switch is considered."""
    dwell_s: float = 10.0
    """Least time between two switches of the policy, in seconds."""
    interval_s: float = 0.25
    """Least time between two decisions, in seconds; the leader asks no more often."""
    confirm: int = 2
    """Consecutive decisions that must agree on the layout to switch to."""
    horizon_steps: int = DEFAULT_HORIZON_STEPS
    """At most so many future steps are counted as gain, and what grows in them must fit."""
    exposed_ms_per_minute: float = 2000.0
    """Budget of predicted exposed switch time, in milliseconds per minute."""
    itl_bound_ms: float | None = None
    """Decode steps should not take longer; layouts that do are chosen only if all do."""
    ttft_bound_ms: float | None = None
    """A prompt that comes now and fits a chunk should have its first token by then: chunks are chosen so, and
    layouts that cannot are chosen only if none can."""
    hold_s: float = 60.0
    """For how long a manual set holds the policy off, in seconds."""
    max_age_s: float = 10.0
    """Inputs older than this mean HOLD, in seconds."""
    shadow: bool = False
    """Decide and record, but never switch."""

    def __post_init__(self) -> None:
        for key, allowed, words in _RANGES:
            value = getattr(self, key)
            if not allowed(value):
                raise ConfigError(f"{key}: {words}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """The policies of both phases; `enabled` is false with `--policy off`."""

    enabled: bool = True
    prefill: PolicyConfig = PolicyConfig()
    decode: PolicyConfig = PolicyConfig()

    def of(self, phase: Phase) -> PolicyConfig:
        """The policy of one phase."""
        return self.prefill if phase is Phase.PREFILL else self.decode


def load_policy(option: str) -> PolicySet:
    """The value of `--policy`: `off`, `auto` (defaults), or the path of a TOML file.

    Raises:
        ConfigError: the file cannot be read, or a key is wrong.
    """
    if option == "off":
        return PolicySet(enabled=False)
    if option == "auto":
        return PolicySet()
    try:
        text = Path(option).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise ConfigError(f"policy file {option}: {cause}; give off, auto or a TOML file") from error
    return parse_policy(text, source=option)


def parse_policy(text: str, *, source: str = "policy") -> PolicySet:
    """Policies from TOML text.

    Raises:
        ConfigError: not TOML, an unknown section or key, or a bad value; names it and what is allowed.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from error
    sections = ("all", *Phase)
    for name, value in document.items():
        if name not in sections:
            raise ConfigError(f"{source}: unknown section {name!r}; known: {', '.join(sections)}")
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: {name} must be a section, [{name}]")
    shared = _apply(PolicyConfig(), document.get("all", {}), where=f"{source}: all")
    phases = {
        phase: _apply(shared, document.get(phase.value, {}), where=f"{source}: {phase.value}")
        for phase in Phase
    }
    return PolicySet(prefill=phases[Phase.PREFILL], decode=phases[Phase.DECODE])


def _apply(config: PolicyConfig, section: Mapping[str, Any], *, where: str) -> PolicyConfig:
    known = [item.name for item in fields(PolicyConfig)]
    values: dict[str, Any] = {}
    for key, value in section.items():
        if key not in known:
            raise ConfigError(f"{where}.{key}: unknown key; known: {', '.join(known)}")
        values[key] = _value(key, value, where=f"{where}.{key}")
    try:
        return replace(config, **values)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from error


def _value(key: str, value: object, *, where: str) -> object:
    if key == "allowed":
        return _layouts(value, where=where)
    if key == "shadow":
        if not isinstance(value, bool):
            raise ConfigError(f"{where}: true or false is required, got {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where}: a number is required, got {value!r}")
    if key in ("confirm", "horizon_steps"):
        if not isinstance(value, int):
            raise ConfigError(f"{where}: a whole number is required, got {value!r}")
        return value
    return float(value)


def _layouts(value: object, *, where: str) -> tuple[Layout, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: a list of layouts is required, got {value!r}")
    names = cast("list[object]", value)
    for name in names:
        if name not in list(Layout):
            raise ConfigError(f"{where}: {name!r} is not a layout; known: {', '.join(Layout)}")
    return tuple(Layout(str(name)) for name in names)
