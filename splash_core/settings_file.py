"""The TOML file of `--config`: its text as keys and values, and words for a key that nobody knows.

Invariant: what is in the file is either known or refused; a misspelt key never looks like a default.
"""

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Collection, Sequence
from pathlib import Path

from splash_core.errors import ConfigError
from splash_core.settings_base import checked, converted


def read_settings_file(path: Path, kinds: Sequence[type]) -> dict[str, object]:
    """Checked values by setting name, also of those that a flag overrides; keys may be written with dashes.

    Args:
        path: the file.
        kinds: settings classes of all commands, which may share the file; of equal names the last counts.

    Raises:
        ConfigError: the file cannot be read, has a section or an unknown key, or a value is not allowed.
    """
    known = {
        field.name: (field, typing.get_type_hints(kind)[field.name])
        for kind in kinds
        for field in dataclasses.fields(kind)
    }
    values: dict[str, object] = {}
    for key, value in _read(path).items():
        name = key.replace("-", "_")
        if name not in known or isinstance(value, dict):
            raise ConfigError(f"{path}: {_unknown(key, value, known)}")
        if name in values:
            raise ConfigError(f"{path}: {name} is given twice, with dashes and without; leave one out")
        field, hint = known[name]
        source = f"{name} in {path}"
        values[name] = checked(converted(value, hint, source), field, source)
    return values


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"settings file {path} does not exist; check --config") from None
    except OSError as error:
        raise ConfigError(f"settings file {path}: {error.strerror or error}; check --config") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"settings file {path} is not UTF-8 (byte {error.start}); save it as such"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"settings file {path} is not valid TOML: {error}") from None


def _unknown(key: str, value: object, known: Collection[str]) -> str:
    if isinstance(value, dict):
        return f"there are no sections, but the file has [{key}]; settings stand at its top"
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.5)
    return f"unknown setting {key!r}; {f'is {near[0]} meant?' if near else 'see docs/settings.md'}"
