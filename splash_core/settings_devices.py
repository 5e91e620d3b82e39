"""Settings of what a worker group computes on."""

from dataclasses import dataclass

from splash_core.settings_base import Range, setting
from splash_core.settings_links import LinkSettings
from splash_core.units import GRAPH_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings(LinkSettings):
    """The ranks' devices, and what they compute in; which GPUs they are is each command's own setting."""

    device: str = setting(
        "cpu",
        "Where ranks compute: on cuda each has a GPU, and groups are on one host (transport shm).",
        choices=("cpu", "cuda"),
    )
    gpu: str = setting("h200", "Which GPU cuda is: its figures size the pool and predict step times.")
    memory_fraction: float = setting(
        0.85, "Part of a GPU's memory that its rank may use.", within=Range(above=0, most=1)
    )
    dtype: str = setting(
        "auto",
        "Arithmetic and KV type; auto is fp32 on CPU, bf16 on cuda.",
        choices=("auto", "fp32", "fp64", "bf16"),
    )
    graphs: str = setting(
        "auto",
        "Record decode steps when a rank loads, and replay them; auto: on cuda. A CPU runs them again.",
        choices=("auto", "on", "off"),
    )
    graph_bytes: int = setting(
        GRAPH_BYTES,
        "Set aside on each GPU for recorded decode steps, and the most they may take.",
        unit="bytes",
    )
