"""Tables as TOML text, as far as policy documents need it: the standard library only reads TOML.

Invariant: `tomllib.loads(to_toml(table))` equals the table.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(table: Mapping[str, Any]) -> str:
    """A table of numbers, texts, truths, lists of texts, tables and lists of tables."""
    return "\n".join(_lines(table, ())).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"{_key(name)} = {_value(value)}" for name, value in table.items() if not _tables(value)]
    for name, value in table.items():
        below, several = _path((*path, name)), isinstance(value, list)
        for entry in _tables(value):
            # A table that holds tables only is there by their names.
            named = several or not entry or not all(map(_tables, entry.values()))
            header = f"[[{below}]]" if several else f"[{below}]"
            lines += [*(["", header] if named else []), *_lines(entry, (*path, name))]
    return lines


def _tables(value: Any) -> list[Mapping[str, Any]]:
    """The tables that a value is or lists; none for a plain value."""
    listed = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [cast("Mapping[str, Any]", entry) for entry in listed if isinstance(entry, Mapping)]


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_text, cast('list[str]', value)))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _path(names: tuple[str, ...]) -> str:
    return ".".join(map(_key, names))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    # JSON escapes what TOML wants escaped, but for DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
