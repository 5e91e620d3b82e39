"""Settings of `splash bench rollout`. Invariant: what a result depends on is a field here."""

from dataclasses import dataclass

from splash_core.settings_base import COUNT, POSITIVE, Range, setting
from splash_core.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """`splash bench rollout`."""

    model: str = setting("smollm2-mla", "Checkpoint's folder, or a fetched model's name.")
    policy: str = setting("auto", "What the policy's arm follows: auto, or a policy file.")
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
    seed: int = setting(0, "Of lengths and prompts.")
    ranks: int = setting(2, "Ranks of each of the two groups.", within=COUNT)
    dtype: str = setting("fp32", "Arithmetic and KV type.", choices=("fp32", "fp64", "bf16"))
    page_size: int = setting(16, "Size of a KV page.", unit="tokens", within=COUNT)
    kv_bytes: int = setting(
        640 * MIB, "KV room of a rank: enough for all requests at once.", unit="bytes", within=COUNT
    )
    chunk_tokens: int = setting(512, "Most prompt tokens in one step.", unit="tokens", within=COUNT)
    max_running: int = setting(64, "Most sequences that run at once in a group.", within=COUNT)
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
    run_dir: str = setting("", "Folder for logs; default: as `splash up`.")
    out: str = setting("", "Folder for the JSON document, for example docs/results.")
    label: str = setting("", "A word for the document's name, beside benchmark, date and commit.")
    commit: str = setting("", "The commit that is measured; default: what git says.")
