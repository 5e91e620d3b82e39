"""Settings of `splash calibrate`."""

from dataclasses import dataclass

from services.bench.settings import BenchSettings
from splash_core.settings_base import COUNT, Output, Range, output, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateSettings(BenchSettings):
    """What is measured, and where the profile goes."""

    model: str = setting(
        "auto",
        "Dimensions to measure, with random weights: a checkpoint's folder, a fetched or known model's name, "
        "bench-v3 or bench-tiny; auto is bench-v3 on GPUs, bench-tiny on CPU.",
    )
    out: str = output(Output.FILE, "File for the profile, for --profile of `splash up`; default: only shown.")
    measured: str = output(
        Output.FILE,
        "JSON document of an earlier run: it is fitted again, and nothing but --streams is measured.",
    )
    results: str = output(Output.FOLDER, "Folder for the JSON document, for example docs/results.")
    budget_s: float = setting(
        600.0, "Begin no batch that may end later than this; 0: measure the whole grid.", unit="s"
    )
    layouts: str = setting("TP,CP,DP,DOP", "Layouts to measure.")
    batch: str = setting("1,2,4,8,16,32,64", "Requests of decode steps, a list.")
    prompts: str = setting("1,2,4,8", "Requests of prefill steps, a list.")
    context: str = setting("64,256,1K,2K", "Longest cached histories, a list.", unit="tokens")
    rows: str = setting("16,64,256,512", "Rows of a prefill step, over all requests, a list.", unit="tokens")
    most_tokens: int = setting(
        16384, "Most tokens that one batch may cache.", unit="tokens", within=Range(least=2)
    )
    most_pairs: int = setting(
        65536, "Most (row, key) pairs of one prefill step: bounds its time.", within=COUNT
    )
    streams: str = setting(
        "",
        "Streams at once, a list such as 1,4,16,64: they are served at the end, and what service adds to a "
        "step enters the profile (CPU only; the model needs a checkpoint).",
    )
    stream_tokens: int = setting(32, "Tokens that each of them generates.", unit="tokens", within=COUNT)
    reps: int = setting(5, "Repetitions of each step; the median counts.", within=COUNT)
    warmup: int = setting(2, "Steps in front of them that never enter the fit.", within=COUNT)
