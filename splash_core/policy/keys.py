"""The keys of a policy document: what each means, which values it takes, and what is said of a wrong one.

Invariant: a value that `Key.read` returned is one that the policy can run with; everything else is a
`ConfigError` that names the key, the value and what is allowed.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout

NONE = "none"
"""How a document writes that a key has no value, where an outer section gives it one."""

Value = float | int | bool | Layout | tuple[Layout, ...] | None
Values = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a section."""

    name: str
    doc: str
    form: Callable[[object, str], Value]
    """The value in its type, whatever its size; told where the key stands."""
    holds: Callable[[Any], bool] = lambda _: True
    words: str = ""
    """What `holds` demands."""

    def read(self, value: object, *, where: str) -> Value:
        """The value of the key that stands at `where`; raises `ConfigError`."""
        read = self.form(value, where)
        if isinstance(read, float) and math.isinf(read):
            raise ConfigError(f"{where}: a finite number is required, got {value}")
        self.check(read, where=where)
        return read

    def check(self, value: Value, *, where: str) -> None:
        """Return if the value is in range; raises `ConfigError`."""
        if not self.holds(value):
            raise ConfigError(f"{where}: {self.words}, got {value}")


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{where}: a number is required, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _count(value: object, where: str) -> int:
    number = _number(value, where)
    if not isinstance(value, int):
        raise ConfigError(f"{where}: a whole number is required, got {value!r}")
    return int(number) if math.isfinite(number) else value


def _number_or_none(value: object, where: str) -> float | None:
    return None if value == NONE else _number(value, where)


def _yes_or_no(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: true or false is required, got {value!r}")
    return value


def _layout(value: object, where: str) -> Layout:
    if not isinstance(value, str) or value not in list(Layout):
        raise ConfigError(f"{where}: {value!r} is not a layout; known: {', '.join(Layout)}")
    return Layout(value)


def _layout_or_none(value: object, where: str) -> Layout | None:
    return None if value == NONE else _layout(value, where)


def _layouts(value: object, where: str) -> tuple[Layout, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: a list of layouts is required, got {value!r}")
    return tuple(_layout(name, where) for name in cast("list[object]", value))


# NaN compares false with everything, so it is in no range.
_NOT_NEGATIVE: dict[str, Any] = {"holds": (0.0).__le__, "words": "must not be negative"}
_MOST_STEPS = 1_000_000_000


def _is_a_count(value: Any) -> bool:
    return 1 <= value <= _MOST_STEPS


_A_COUNT: dict[str, Any] = {
    "holds": _is_a_count,
    "words": f"must be at least 1 and at most {_MOST_STEPS}",
}

KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        Key(
            name="allowed",
            doc="of the layouts that the group offers (`--layouts`), those that the policy may choose; "
            "`layout set` and `pin` may choose others",
            form=_layouts,
            holds=lambda layouts: len(layouts) > 0,
            words="must name at least one layout",
        ),
        Key(
            name="margin",
            doc="another layout must lead by this much (relative to its own objective)",
            form=_number,
            holds=lambda value: 0 <= value < 10,
            words="must be in [0, 10)",
        ),
        Key(name="dwell_s", doc="least time between two switches, s", form=_number, **_NOT_NEGATIVE),
        Key(name="interval_s", doc="least time between two decisions, s", form=_number, **_NOT_NEGATIVE),
        Key(
            name="confirm",
            doc="consecutive decisions that must agree",
            form=_count,
            **_A_COUNT,
        ),
        Key(
            name="horizon_steps",
            doc="at most so many future steps count as gain; output that grows in them must fit",
            form=_count,
            **_A_COUNT,
        ),
        Key(
            name="exposed_ms_per_minute",
            doc="budget of predicted exposed switch time, ms per minute",
            form=_number,
            **_NOT_NEGATIVE,
        ),
        Key(
            name="itl_bound_ms",
            doc="decode steps should not take longer; slower layouts are chosen only if all are slower",
            form=_number_or_none,
            holds=lambda value: value is None or value > 0,
            words=f'must be above 0, or "{NONE}"',
        ),
        Key(
            name="ttft_bound_ms",
            doc="first token of a prompt that comes now and fits a chunk: chunks are chosen so, and slower "
            "layouts only if all are slower",
            form=_number_or_none,
            holds=lambda value: value is None or value > 0,
            words=f'must be above 0, or "{NONE}"',
        ),
        Key(
            name="hold_s",
            doc="a manual set keeps the policy off for so long, s",
            form=_number,
            **_NOT_NEGATIVE,
        ),
        Key(
            name="max_age_s",
            doc="inputs older than this mean HOLD, s",
            form=_number,
            holds=lambda value: value > 0,
            words="must be above 0",
        ),
        Key(name="shadow", doc="decide and record, never switch; a pin still does", form=_yes_or_no),
        Key(name="enabled", doc="false: no decisions at all, as with `--policy off`", form=_yes_or_no),
        Key(
            name="pin",
            doc=f'hold this layout, as `splash layout pin` does, which goes before it; "{NONE}": do not',
            form=_layout_or_none,
        ),
    )
}


def read_values(section: Mapping[str, Any], *, where: str, others: tuple[str, ...] = ()) -> dict[str, Value]:
    """The keys of a section in the order of `KEYS`.

    Args:
        section: as parsed; entries named in `others` are left to the caller.
        where: path of the section, for errors.
        others: names that are no keys of the policy but may stand here.
    """
    for name in section:
        if name not in KEYS and name not in others:
            known = ", ".join((*KEYS, *others))
            raise ConfigError(f"{where}.{name}: unknown key; known: {known}")
    return {
        name: key.read(section[name], where=f"{where}.{name}")
        for name, key in KEYS.items()
        if name in section
    }


def plain(value: Value) -> Any:
    """A value as a document writes it."""
    if value is None:
        return NONE
    if isinstance(value, tuple):
        return [layout.value for layout in value]
    return value.value if isinstance(value, Layout) else value
