"""Fields of settings classes: documentation, unit and allowed values travel with each field.

A settings class is a frozen dataclass whose fields are made by `setting`. Invariant: a value that passed
`converted` and `checked` has the field's type and is one that this version serves.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import urlsplit

from splash_core.errors import ConfigError
from splash_core.units import GROUP_RANKS

S = TypeVar("S")
Choices = tuple[str, ...]
_MOST_S = 1_000_000.0
"""Timers beyond 11 days overflow what waits for them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Which numbers a setting may have; NaN and infinity never."""

    least: float = 0
    above: float | None = None
    """A bound that may not be reached, instead of `least`."""
    most: float | None = None

    def __contains__(self, value: float) -> bool:
        # NaN compares false with everything, hence the form of the conditions.
        high_enough = value >= self.least if self.above is None else value > self.above
        return high_enough and (value < math.inf if self.most is None else value <= self.most)

    def __str__(self) -> str:
        low = f"at least {self.least:g}" if self.above is None else f"above {self.above:g}"
        return low if self.most is None else f"{low}, at most {self.most:,.0f}"


class Output(StrEnum):
    """What a setting names that its command writes at the end."""

    FILE = "file"
    FOLDER = "folder"


COUNT = Range(least=1)
RANKS = Range(least=1, most=GROUP_RANKS)
POSITIVE = Range(above=0)
PORT = Range(most=65535)


def an_address(text: str) -> bool:
    """HOST:PORT or unix:PATH"""
    if text.startswith("unix:"):
        return len(text) > len("unix:")
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535


def addresses(text: str) -> bool:
    """a list of HOST:PORT or unix:PATH, separated by commas"""
    return all(an_address(part.strip()) for part in text.split(","))


def a_port_range(text: str) -> bool:
    """a range of ports such as 20000-20100"""
    low, _, high = text.partition("-")
    if not all(part.isascii() and part.isdecimal() for part in (low, high)):
        return False
    return 1 <= int(low) <= int(high) <= 65535


def gpu_numbers(text: str) -> bool:
    """a list of different GPU numbers such as 0,1"""
    parts = [part.strip() for part in text.split(",")]
    plain = all(part.isascii() and part.isdecimal() for part in parts)
    return plain and len(set(map(int, parts))) == len(parts)


def a_file_word(text: str) -> bool:
    """1 to 64 of the letters, digits, dots, dashes and underscores that a file's name may have"""
    return re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text) is not None


def a_url(text: str) -> bool:
    """a URL such as http://127.0.0.1:8001"""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def setting(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    choices: Choices = (),
    planned: Mapping[str, str] | None = None,
    hidden: bool = False,
    within: "Range | None" = None,
    form: "Callable[[str], bool] | None" = None,
) -> Any:
    """A dataclass field with what a user must know of it.

    Args:
        default: the value when neither flag, environment nor file sets it.
        doc: one sentence.
        unit: of the number, empty when it has none.
        choices: the values that are allowed, when few.
        planned: values that the contract knows but this version refuses, with the remedy.
        hidden: set by Splash for its own child processes.
        within: which numbers are allowed; default: all from 0 on.
        form: of a text that is not empty; its docstring says what it must be.
    """
    within = within or Range()
    if within.most is None and unit == "s":
        within = dataclasses.replace(within, most=_MOST_S)
    metadata = {"doc": doc, "unit": unit, "choices": choices, "planned": planned or {}, "hidden": hidden}
    return dataclasses.field(default=default, metadata=metadata | {"within": within, "form": form})


def output(what: Output, doc: str) -> Any:
    """The path of what is written at the end; commands make sure that it can be before they begin."""
    field = setting("", doc)
    return dataclasses.field(default="", metadata={**field.metadata, "writes": what})


def converted(value: object, hint: object, source: str) -> object:
    """The value in the type of its field; `source` says in errors where it came from."""
    target = hint
    if isinstance(hint, types.UnionType):
        target = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    if target is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and target in (int, float):
        try:
            return parse_size(value) if target is int else float(value)
        except (ValueError, OverflowError):
            raise ConfigError(f"{source}: {value!r} is not a number; example: 64") from None
    if isinstance(value, str) and target is bool:
        if value.lower() not in ("0", "1", "true", "false"):
            raise ConfigError(f"{source}: {value!r} is neither true nor false")
        return value.lower() in ("1", "true")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{source}: {value!r} holds a NUL character")
    # True and false are integers to Python only.
    fits = not isinstance(target, type) or isinstance(value, target)
    if not fits or (isinstance(value, bool) and target is not bool):
        raise ConfigError(f"{source}: {value!r} must be of type {getattr(target, '__name__', target)}")
    return value


def parse_size(text: str) -> int:
    """An integer with an optional binary suffix: `64`, `512M`, `2GiB`."""
    body = text.strip().removesuffix("iB").removesuffix("B")
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}.get(body[-1:].upper())
    return int(body) if factor is None else int(float(body[:-1]) * factor)


def checked(value: object, field: "dataclasses.Field[Any]", source: str) -> object:
    """The value, if it is one that this version serves."""
    planned: Mapping[str, str] = field.metadata["planned"]
    # `redis://host` is the value `redis` with an address.
    scheme = value.partition("://")[0] if isinstance(value, str) else ""
    if scheme in planned:
        raise ConfigError(f"{source}: {value!r} is not served by this version: {planned[scheme]}")
    within: Range = field.metadata["within"]
    if isinstance(value, int | float) and not isinstance(value, bool) and value not in within:
        raise ConfigError(f"{source}: {value} is out of range: {within}")
    form = field.metadata["form"]
    if form is not None and value and not form(value):
        raise ConfigError(f"{source}: {value!r} is not {form.__doc__}")
    choices: Choices = field.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(
            f"{source}: {value!r} is not one of {', '.join(choice for choice in choices if choice)}"
        )
    return value


def check_settings(settings: object) -> None:
    """Check the numbers of an object that was not made by `resolve`.

    Raises:
        ConfigError: one is out of range.
    """
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        checked(getattr(settings, field.name), field, f"--{field.name.replace('_', '-')}")


def as_flags(settings: object) -> list[str]:
    """The command-line flags that reproduce a settings object in a child process."""
    flags: list[str] = []
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        if value != "":
            flags += [f"--{field.name.replace('_', '-')}", str(value)]
    return flags


def shared_fields(source: object, kind: type[S]) -> dict[str, object]:
    """Values of `source`'s fields that `kind` has too."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return {
        field.name: getattr(source, field.name)
        for field in dataclasses.fields(source)  # type: ignore[arg-type]
        if field.name in names
    }


def reference(*kinds: type) -> str:
    """A Markdown table of all settings with unit and default: the reference page's body."""
    lines = ["| setting | flag | environment | default | unit | meaning |", "|---|---|---|---|---|---|"]
    seen: set[str] = set()
    for field in (field for kind in kinds for field in dataclasses.fields(kind)):
        if field.name in seen or field.metadata["hidden"]:
            continue
        seen.add(field.name)
        doc = field.metadata["doc"]
        choices = [choice for choice in field.metadata["choices"] if choice]
        doc += f" One of: {', '.join(choices)}." if choices else ""
        doc += f" Range: {field.metadata['within']}." if isinstance(field.default, int | float) else ""
        flag = f"`--{field.name.replace('_', '-')}`"
        default = "" if field.default in ("", dataclasses.MISSING) else f"`{field.default}`"
        variable = f"`SPLASH_{field.name.upper()}`"
        lines.append(f"| {field.name} | {flag} | {variable} | {default} | {field.metadata['unit']} | {doc} |")
    return "\n".join(lines) + "\n"
