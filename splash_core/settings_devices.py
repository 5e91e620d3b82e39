"""Settings of what a worker group computes on."""

from dataclasses import dataclass

from splash_core.settings_base import Range, setting
from splash_core.settings_links import LinkSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings(LinkSettings):
    """The ranks' devices; which GPUs they are is each command's own setting."""

    device: str = setting(
        "cpu",
        "Where ranks compute: on cuda each has a GPU, and groups are on one host (transport shm).",
        choices=("cpu", "cuda"),
    )
    gpu: str = setting("h200", "Which GPU cuda is: its figures size the pool and predict step times.")
    memory_fraction: float = setting(
        0.85, "Part of a GPU's memory that its rank may use.", within=Range(above=0, most=1)
    )
