"""Settings of `splash bench burst`. Invariant: what a result depends on is a field here."""

from dataclasses import dataclass

from splash_core.settings_base import COUNT, Range, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstSettings:
    """`splash bench burst`."""

    model: str = setting("smollm2-mla", "Checkpoint's folder, or a fetched model's name.")
    bursts: str = setting(
        "1:512:16,16:128:32,64:32:32",
        "Requests:prompt tokens:generated tokens of each burst, a list; an arm runs them in this order.",
    )
    arms: str = setting(
        "TP/TP,CP/CP,DP/DP,DOP/DOP,policy",
        "Layouts of prefill and decode, or what --policy does; a list.",
    )
    runs: int = setting(1, "Runs; in each, every arm once.", within=Range(least=1, most=31))
    budget_s: float = setting(0.0, "Begin no arm that may end later than this; 0: no limit.", unit="s")
    policy: str = setting("auto", "What the arm `policy` follows: auto, or a policy file.")
    profile: str = setting(
        "", "File that `splash calibrate` wrote, for the policy; default: the device's own figures."
    )
    load_format: str = setting(
        "auto", "As `splash up`: dummy makes random weights.", choices=("auto", "dummy")
    )
    device: str = setting("cpu", "Where ranks compute.", choices=("cpu", "cuda"))
    prefill_gpus: str = setting("", "As `splash up`.")
    decode_gpus: str = setting("", "As `splash up`.")
    memory_fraction: float = setting(
        0.85, "Part of a GPU's memory that one rank may use.", within=Range(above=0, most=1)
    )
    dtype: str = setting("auto", "Arithmetic and KV type.", choices=("auto", "fp32", "fp64", "bf16"))
    ranks: int = setting(2, "Ranks of each of the two groups.", within=COUNT)
    page_size: int = setting(64, "Size of a KV page.", unit="tokens", within=COUNT)
    kv_bytes: int = setting(0, "KV room of a rank; 0: as `splash up`.", unit="bytes")
    chunk_tokens: int = setting(8192, "Most prompt tokens in one step.", unit="tokens", within=COUNT)
    max_running: int = setting(64, "Most sequences that run at once in a group.", within=COUNT)
    seed: int = setting(0, "Of prompts.")
    out: str = setting("", "Folder for the JSON document, for example docs/results.")
    label: str = setting("", "A word for the document's name, beside benchmark, date and commit.")
    commit: str = setting("", "The commit that is measured; default: what git says.")
