"""What `splash doctor` checks: the settings that `splash up` would run with, and a cluster that runs."""

from dataclasses import dataclass

from splash_core.config import UpSettings
from splash_core.settings_base import a_url, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings(UpSettings):
    """`splash up`'s settings, so that one file or environment serves both."""

    admin: str = setting("", "URL of a running cluster's admin port; default: only this host.", form=a_url)
