"""Settings of `splash bench rollout`. Invariant: what a result depends on is a field here or in its base."""

from dataclasses import dataclass

from services.bench.live_settings import LiveSettings
from splash_core.settings_base import COUNT, POSITIVE, Range, setting
from splash_core.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings(LiveSettings):
    """`splash bench rollout`."""

    profile: str = setting(
        "",
        "File that `splash calibrate` wrote on this machine for this model: what the policy and the "
        "simulator predict with; default: the device's own figures.",
    )
    simulate: str = setting(
        "", "JSON document of an earlier run: its workload is simulated with --profile, nothing is measured."
    )
    runs: int = setting(5, "Runs; in each, every arm once.", within=Range(least=1, most=31))
    requests: int = setting(64, "Requests at once.", within=COUNT)
    lengths: float = setting(
        0.04, "Multiplies prompts and outputs of the simulator's rl-rollout.", within=POSITIVE
    )
    dtype: str = setting("fp32", "Arithmetic and KV type.", choices=("fp32", "fp64", "bf16"))
    page_size: int = setting(16, "Size of a KV page.", unit="tokens", within=COUNT)
    kv_bytes: int = setting(
        640 * MIB, "KV room of a rank: enough for all requests at once.", unit="bytes", within=COUNT
    )
    rest_s: float = setting(
        12.0,
        "Pause before each arm; longer than the policy's dwell, which counts from how the arm was prepared.",
        unit="s",
    )
    canary_every_s: float = setting(
        0.0,
        "As `splash up`: above 0, fixed prompts are also asked after each switch, beside the requests; the "
        "simulation has no such prompts.",
        unit="s",
    )
