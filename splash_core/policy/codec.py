"""Frozen values as JSON trees and back, exactly: what a replay bundle is made of.

Knows no class by name: fields and their types say how. Invariant: `decode(type(x), encode(x)) == x`, bit
for bit, for values made of dataclasses, enumerations, numbers, texts, tuples and mappings; JSON text in
between keeps it so, as Python writes the shortest digits that give the same number again.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NewType, Union, cast, get_args, get_origin, get_type_hints

from splash_core.errors import ConfigError

Tree = Any
"""Objects, lists, numbers, texts, booleans and null."""

_FLOAT = "$float"
"""JSON has no infinity: such a number is an object with its name."""


def encode(value: object) -> Tree:
    """A value as a tree."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: encode(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        return {_key(key): encode(entry) for key, entry in entries.items()}
    if isinstance(value, tuple | list | frozenset):
        items = cast("tuple[object, ...]", value)
        return [encode(item) for item in items]
    return value


def decode(kind: Any, tree: Tree, *, where: str = "bundle") -> Any:
    """A value of type `kind` from what `encode` gave.

    Raises:
        ConfigError: the tree is not one of such a value; names the place.
    """
    if isinstance(kind, NewType):
        return decode(kind.__supertype__, tree, where=where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _optional(kind, tree, where)
    if origin is tuple:
        return _tuple(get_args(kind), tree, where)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(get_args(kind), tree, where)
    if kind is Any:
        return tree
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind, tree, where)
    return _scalar(kind, tree, where)


def _scalar(kind: Any, tree: Tree, where: str) -> Any:
    try:
        if issubclass(kind, Enum):
            return kind(tree)
        if kind is float and isinstance(tree, dict):
            return float(cast("dict[str, str]", tree)[_FLOAT])
    except (ValueError, KeyError, TypeError) as error:
        raise _wrong(kind, tree, where) from error
    if kind is float and isinstance(tree, int) and not isinstance(tree, bool):
        return float(tree)
    if not isinstance(tree, kind) or (isinstance(tree, bool) and kind is not bool):
        raise _wrong(kind, tree, where)
    return tree


def _optional(kind: Any, tree: Tree, where: str) -> Any:
    """A union with None, of one other type."""
    inner = [one for one in get_args(kind) if one is not type(None)]
    if len(inner) != 1:
        raise _wrong(kind, tree, where)
    return None if tree is None else decode(inner[0], tree, where=where)


def _tuple(kinds: tuple[Any, ...], tree: Tree, where: str) -> tuple[Any, ...]:
    if not isinstance(tree, list):
        raise _wrong(tuple, tree, where)
    items = cast("list[Tree]", tree)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(items)
    if len(kinds) != len(items):
        raise ConfigError(f"{where}: {len(items)} items where {len(kinds)} belong")
    return tuple(
        decode(kind, item, where=f"{where}[{index}]")
        for index, (kind, item) in enumerate(zip(kinds, items, strict=True))
    )


def _mapping(kinds: tuple[Any, ...], tree: Tree, where: str) -> Mapping[Any, Any]:
    if not isinstance(tree, dict):
        raise _wrong(dict, tree, where)
    entries = cast("dict[str, Tree]", tree)
    return {
        decode(kinds[0], key, where=where): decode(kinds[1], entry, where=f"{where}.{key}")
        for key, entry in entries.items()
    }


def _dataclass(kind: type[Any], tree: Tree, where: str) -> Any:
    if not isinstance(tree, dict):
        raise _wrong(kind, tree, where)
    entries, hints = cast("dict[str, Tree]", tree), get_type_hints(kind)
    known = {item.name for item in fields(kind)}
    if entries.keys() != known:
        odd = ", ".join(sorted(entries.keys() ^ known))
        raise ConfigError(f"{where}: {kind.__name__} differs in {odd}; was it written by this version?")
    return kind(**{name: decode(hints[name], entries[name], where=f"{where}.{name}") for name in entries})


def _key(key: object) -> str:
    text = key.value if isinstance(key, Enum) else key
    if not isinstance(text, str):
        raise TypeError(f"keys of a tree are texts, got {key!r}")
    return text


def _wrong(kind: Any, tree: Tree, where: str) -> ConfigError:
    return ConfigError(f"{where}: {getattr(kind, '__name__', kind)} is required, got {tree!r:.80}")
