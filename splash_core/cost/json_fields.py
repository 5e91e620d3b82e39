"""Checked fields of a profile's JSON.

Invariant: whatever is wrong is a `ConfigError` that names the field and its value.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

from splash_core.errors import ConfigError
from splash_core.spec.fields import parse_json


def json_object(text: str) -> dict[str, Any]:
    """The object that a profile's text holds."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"profile is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"profile must be a JSON object, got {type(values).__name__}")
    return cast("dict[str, Any]", values)


def text_of(values: Mapping[str, Any], name: str, *, where: str = "") -> str:
    """A text."""
    value = values.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"profile field {where}{name}: text is required, got {value!r}")
    return value


def number(values: Mapping[str, Any], name: str, *, where: str = "") -> float:
    """A finite number."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"profile field {where}{name}: a finite number is required, got {value!r}")
    return float(value)


def positive(values: Mapping[str, Any], name: str, *, where: str = "") -> float:
    """A number above 0."""
    value = number(values, name, where=where)
    if value <= 0:
        raise ConfigError(f"profile field {where}{name}: must be above 0, got {value}")
    return value


def non_negative(values: Mapping[str, Any], name: str, *, where: str = "") -> float:
    """A number that is not negative."""
    value = number(values, name, where=where)
    if value < 0:
        raise ConfigError(f"profile field {where}{name}: must not be negative, got {value}")
    return value


def fraction(values: Mapping[str, Any], name: str) -> float:
    """A number from 0 to 1."""
    value = non_negative(values, name)
    if value > 1:
        raise ConfigError(f"profile field {name}: must be at most 1, got {value}")
    return value


def count(values: Mapping[str, Any], name: str, *, where: str = "") -> int:
    """A whole number that is not negative; what comes after its point is cut off."""
    return int(non_negative(values, name, where=where))
