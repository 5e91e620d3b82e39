"""Typed reads from a Hugging Face config.json, so that a wrong config fails with the field's name.

Invariant: a value that comes out of here has the type it is declared with; nothing is guessed silently.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from splash_core.errors import ConfigError

T = TypeVar("T")


def parse_json(text: str | bytes) -> Any:
    """JSON in which no object has a key twice; raises `ValueError`, which names such a key.

    Of two values for one key the parser alone would keep the last, and say nothing.
    """
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} stands twice in one object; keep one")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        ConfigError: the file is missing, not JSON, or not an object.
    """
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give a directory in Hugging Face format") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__}, expected a JSON object")
    return cast("dict[str, Any]", value)


def check_version(found: object, *, reads: int, what: str, remedy: str) -> None:
    """Refuse a document of a version that is not the one that is read; whatever has a version is asked here.

    Args:
        found: what the document says of its version; None: nothing.
        reads: the version that is read.
        what: the document, in words.
        remedy: how its owner gets one that is read.

    Raises:
        ConfigError: names both versions and the remedy.
    """
    if isinstance(found, bool) or found != reads:
        told = "names no version" if found is None else f"is of version {found!r}"
        raise ConfigError(f"{what} {told}, and version {reads} is read here; {remedy}")


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object with its name for messages. `null` reads as absent, as in transformers."""

    values: Mapping[str, Any]
    where: str = "config.json"

    def raw(self, *names: str) -> Any | None:
        """The first of `names` (a field and its older spellings) that is present and not null."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return value
        return None

    def integer(self, *names: str, default: int | None = None) -> int:
        """An integer field; required without a default."""
        value = self.optional_integer(*names)
        return self._required(names, value, default)

    def optional_integer(self, *names: str) -> int | None:
        """An integer field, or None."""
        value = self.raw(*names)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self.where}: {names[0]} must be an integer, got {value!r}")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """A float field; required without a default."""
        value = self.optional_number(*names)
        return self._required(names, value, default)

    def optional_number(self, *names: str) -> float | None:
        """A float field, or None."""
        value = self.raw(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.where}: {names[0]} must be a number, got {value!r}")
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        """A boolean field."""
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}: {names[0]} must be true or false, got {value!r}")
        return value

    def text(self, *names: str, default: str) -> str:
        """A string field."""
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ConfigError(f"{self.where}: {names[0]} must be a string, got {value!r}")
        return value

    def integers(self, *names: str) -> tuple[int, ...]:
        """A list of integers, one integer, or absent (empty)."""
        return tuple(int(item) for item in self._items(names))

    def numbers(self, *names: str) -> tuple[float, ...]:
        """A list of numbers, one number, or absent (empty)."""
        return tuple(float(item) for item in self._items(names))

    def texts(self, *names: str) -> tuple[str, ...]:
        """A list of strings, or absent (empty)."""
        value = self.raw(*names)
        if value is None:
            return ()
        if not isinstance(value, Sequence):
            raise ConfigError(f"{self.where}: {names[0]} must be a list, got {value!r}")
        return tuple(str(item) for item in cast("Sequence[object]", value))

    def section(self, *names: str) -> "Fields | None":
        """A nested object, or None."""
        value = self.raw(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self.where}: {names[0]} must be an object, got {value!r}")
        return Fields(cast("Mapping[str, Any]", value), f"{self.where}: {names[0]}")

    def _items(self, names: tuple[str, ...]) -> tuple[int | float, ...]:
        value = self.raw(*names)
        if value is None:
            return ()
        items = (
            cast("Sequence[object]", value) if isinstance(value, list | tuple) else (cast("object", value),)
        )
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int | float):
                raise ConfigError(f"{self.where}: {names[0]} must hold numbers, got {item!r}")
        return cast("tuple[int | float, ...]", tuple(items))

    def _required(self, names: tuple[str, ...], value: T | None, default: T | None) -> T:
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self.where}: {names[0]} is missing")
        return default
