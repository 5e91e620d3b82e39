"""The TOML file of `--config`: its text as keys and values, and words for a key that nobody knows.

Invariant: what is in the file is either known or refused; a misspelt key never looks like a default.
"""

import difflib
import tomllib
from collections.abc import Collection
from pathlib import Path

from splash_core.errors import ConfigError


def read_settings_file(path: Path, *, known: Collection[str]) -> dict[str, object]:
    """Values by setting name; keys may be written with dashes.

    Args:
        path: the file.
        known: names of the settings of all commands, which may share the file.

    Raises:
        ConfigError: the file cannot be read, or has a section or an unknown key.
    """
    values: dict[str, object] = {}
    for key, value in _read(path).items():
        name = key.replace("-", "_")
        if name not in known or isinstance(value, dict):
            raise ConfigError(f"{path}: {_unknown(key, value, known)}")
        if name in values:
            raise ConfigError(f"{path}: {name} is given twice, with dashes and without; leave one out")
        values[name] = value
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
