"""What of a group's settings can be refused before its model is looked at closely.

Invariant: a refusal names the setting, and what to set instead.
"""

from pathlib import Path

from splash_core.config import GroupSettings
from splash_core.errors import ConfigError
from splash_core.leader.gpus import group_gpus
from splash_core.settings_base import check_settings


def check_group(settings: GroupSettings, checkpoint: Path) -> None:
    """Return if a group could start with these settings.

    Raises:
        ConfigError: a number is out of range, weights are missing, or what is asked for is not served.
    """
    check_settings(settings)
    group_gpus(settings)
    reads_weights = settings.engine == "torch" and settings.load_format != "dummy"
    if reads_weights and not any(checkpoint.glob("*.safetensors")):
        raise ConfigError(
            f"{checkpoint} has no weights; fetch them, convert them to *.safetensors, or have random ones "
            "with --load-format dummy"
        )
    if settings.nnodes != 1 or settings.node_rank != 0:
        raise ConfigError(
            f"--nnodes {settings.nnodes}: the ranks of one group must be on one host so far (different "
            "groups need not, over --transport mooncake); leave --nnodes and --node-rank out"
        )
