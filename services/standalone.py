"""What all service commands do before they serve: a run folder, logs, and the tie to a parent."""

import dataclasses
from typing import TypeVar

from services.run_folders import run_folder
from splash_core.config import GroupSettings, RouterSettings
from splash_core.obs import logging as logs
from splash_core.obs.lifeline import die_with_parent

S = TypeVar("S", GroupSettings, RouterSettings)


def prepare(settings: S, name: str) -> S:
    """Tie the process to its parent and start its log; returns the settings with a run folder.

    A service without a parent runs alone (in a container, say) and logs to stderr too.
    """
    if settings.parent_pid:
        die_with_parent(settings.parent_pid)
    run_dir = run_folder(settings.run_dir)
    logs.configure(name, run_dir=run_dir, log_format=settings.log_format, to_stderr=not settings.parent_pid)
    return dataclasses.replace(settings, run_dir=str(run_dir))
