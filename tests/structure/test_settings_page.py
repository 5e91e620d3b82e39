"""The settings page is what the settings classes say."""

from pathlib import Path

from splash_core.config import AdminSettings, GroupSettings, RouterSettings, UpSettings
from splash_core.settings_base import reference

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
HEAD = """# Settings

Every setting can be a flag, an environment variable, or a key of the TOML file given with `--config`; flags
win over the environment, the environment over the file. Several commands may share a file; a key that none of
them knows is an error. Sizes take binary suffixes: `512M`, `2GiB`. The admin
key is read from `SPLASH_ADMIN_KEY` or `--admin-key-file`, never from the command line. Fetched models lie in
`$XDG_CACHE_HOME/splash`, logs of runs in `$XDG_STATE_HOME/splash`.

This page is generated from `splash_core/config.py` (`python -m tests.structure.test_settings_page`).

"""


def page() -> str:
    """The whole page."""
    return HEAD + reference(UpSettings, GroupSettings, RouterSettings, AdminSettings)


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `.venv/bin/python -m tests.structure.test_settings_page`"


if __name__ == "__main__":
    PAGE.write_text(page())
