"""What benchmarks of a running stack have in common: the groups, and where the document goes.

Invariant: defaults are those of `splash up`, unless a benchmark says otherwise in its own class.
"""

from dataclasses import asdict, dataclass
from typing import Any

from splash_core.config import UpSettings
from splash_core.settings_base import (
    COUNT,
    RANKS,
    Output,
    Range,
    a_file_word,
    gpu_numbers,
    output,
    setting,
    shared_fields,
)

_NOWHERE = ("out", "commit", "label", "run_dir")
"""Settings that no result depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """One prefill and one decode group of as many ranks, behind a router."""

    model: str = setting("smollm2-mla", "Checkpoint's folder, or a fetched model's name.")
    load_format: str = setting(
        "auto", "As `splash up`: dummy makes random weights.", choices=("auto", "dummy")
    )
    policy: str = setting("auto", "What the policy's arm follows: auto, or a policy file.")
    profile: str = setting(
        "", "File that `splash calibrate` wrote, for the policy; default: the device's own figures."
    )
    device: str = setting("cpu", "Where ranks compute.", choices=("cpu", "cuda"))
    prefill_gpus: str = setting("", "As `splash up`.", form=gpu_numbers)
    decode_gpus: str = setting("", "As `splash up`.", form=gpu_numbers)
    memory_fraction: float = setting(
        0.85, "Part of a GPU's memory that one rank may use.", within=Range(above=0, most=1)
    )
    dtype: str = setting("auto", "Arithmetic and KV type.", choices=("auto", "fp32", "fp64", "bf16"))
    ranks: int = setting(2, "Ranks of each of the two groups.", within=RANKS)
    page_size: int = setting(64, "Size of a KV page.", unit="tokens", within=COUNT)
    kv_bytes: int = setting(0, "KV room of a rank; 0: as `splash up`.", unit="bytes")
    chunk_tokens: int = setting(512, "Most prompt tokens in one step.", unit="tokens", within=COUNT)
    max_running: int = setting(64, "Most sequences that run at once in a group.", within=COUNT)
    seed: int = setting(0, "Of lengths and prompts.")
    run_dir: str = setting("", "Folder for logs; default: as `splash up`.")
    out: str = output(Output.FOLDER, "Folder for the JSON document, for example docs/results.")
    label: str = setting(
        "", "A word for the document's name, beside benchmark, date and commit.", form=a_file_word
    )
    commit: str = setting("", "The commit that is measured; default: what git says.", form=a_file_word)

    def stack(self, **own: Any) -> UpSettings:
        """`splash up` with these settings and `own` ones, on free ports; only clients ask it anything."""
        groups = {"prefill_ranks": self.ranks, "decode_ranks": self.ranks}
        quiet = {"canary_every_s": 0.0, "port": 0, "admin_port": 0}
        return UpSettings(**quiet | shared_fields(self, UpSettings) | groups | own)  # type: ignore[arg-type]

    def told(self, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
        """What a document says of them.

        Args:
            without: further ones that no result depends on.
        """
        return {name: value for name, value in asdict(self).items() if name not in (*_NOWHERE, *without)}
