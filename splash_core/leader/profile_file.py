"""Reads the profile that `--profile` names."""

from pathlib import Path

from splash_core.cost.profile import HardwareProfile
from splash_core.errors import ConfigError


def read_profile(path: Path) -> HardwareProfile:
    """The profile in a file that `splash calibrate --out` wrote.

    Raises:
        ConfigError: it cannot be read, or is not one; names the file, the field and the remedy.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise ConfigError(f"profile {path}: {cause}; `splash calibrate --out {path}` writes one") from error
    try:
        return HardwareProfile.from_json(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
