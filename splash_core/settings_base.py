"""Fields of settings classes: documentation, unit and allowed values travel with each field.

A settings class is a frozen dataclass whose fields are made by `setting`. Invariant: a value that passed
`converted` and `checked` has the field's type and is one that this version serves.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from splash_core.errors import ConfigError

S = TypeVar("S")
Choices = tuple[str, ...]


def setting(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    choices: Choices = (),
    planned: Mapping[str, str] | None = None,
    hidden: bool = False,
) -> Any:
    """A dataclass field with what a user must know of it.

    Args:
        default: the value when neither flag, environment nor file sets it.
        doc: one sentence.
        unit: of the number, empty when it has none.
        choices: the values that are allowed, when few.
        planned: values that the contract knows but this version refuses, with the remedy.
        hidden: set by Splash for its own child processes.
    """
    metadata = {"doc": doc, "unit": unit, "choices": choices, "planned": planned or {}, "hidden": hidden}
    return dataclasses.field(default=default, metadata=metadata)


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
        except ValueError:
            raise ConfigError(f"{source}: {value!r} is not a number; example: 64") from None
    if isinstance(value, str) and target is bool:
        if value.lower() not in ("0", "1", "true", "false"):
            raise ConfigError(f"{source}: {value!r} is neither true nor false")
        return value.lower() in ("1", "true")
    if isinstance(target, type) and not isinstance(value, target):
        raise ConfigError(f"{source}: {value!r} must be of type {target.__name__}")
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
    choices: Choices = field.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(
            f"{source}: {value!r} is not one of {', '.join(choice for choice in choices if choice)}"
        )
    return value


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
