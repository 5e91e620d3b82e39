"""Settings of the benchmarks that drive ranks directly: flags, `SPLASH_*` and TOML like all others.

Invariant: what a result depends on is a field here, and every result carries all of them.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from services.bench.shapes import SHAPES
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.settings_base import COUNT, RANKS, Output, a_file_word, output, parse_size, setting
from splash_core.switch.manifest import SwitchMode
from splash_core.units import GRAPH_BYTES, LAYERS_AHEAD, STAGING_BYTES, TRANSFER_CTAS

INPROCESS = "inprocess"
"""Ranks as threads of one process, CPU only."""
ALONE = "alone"
"""One rank of T, with nobody else there: its own work at T's sizes, without links (`alone.py`)."""
AUTO = "auto"
"""Lengths that follow from the model (`lengths.py`)."""
AHEAD_ROOM = 512
"""Output tokens for which room is kept: a switch that copies ahead takes so many ordinary steps at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What every benchmark on ranks has in common."""

    device: str = setting("auto", "Where ranks compute.", choices=("auto", "cpu", "cuda"))
    model: str = setting(
        "auto", "The model's shape; auto is v3 on GPUs, tiny on CPU.", choices=("auto", *SHAPES)
    )
    ranks: int = setting(2, "Ranks, one process and one device each.", within=RANKS)
    backend: str = setting(
        "auto",
        "What carries collectives: auto, shm, gloo, nccl, inprocess (ranks as threads, CPU), or alone (one "
        "rank runs without the others, nothing crosses a link: capacity, sweep, switch).",
    )
    dtype: str = setting(
        "auto",
        "Weights, activations and KV; auto is bf16 on GPUs, fp32 on CPU.",
        choices=("auto", "bf16", "fp32", "fp64"),
    )
    graphs: str = setting(
        "auto", "Replay recorded decode steps; auto: on GPUs.", choices=("auto", "on", "off")
    )
    graph_bytes: int = setting(
        GRAPH_BYTES,
        "Set aside on each GPU for recorded decode steps, and the most they may take.",
        unit="bytes",
    )
    layers: int = setting(0, "Decoder layers; 0: the shape's.")
    experts: int = setting(0, "Routed experts; 0: the shape's.")
    page_size: int = setting(0, "Size of a KV page; 0: 64, tiny 4.", unit="tokens")
    memory_fraction: float = setting(0.85, "Part of a GPU's memory to use.")
    arena_bytes: int = setting(
        0, "Arena of a rank; 0: what the memory fraction leaves, on CPU what the cells need.", unit="bytes"
    )
    staging_bytes: int = setting(STAGING_BYTES, "Staging of a layout switch, per rank.", unit="bytes")
    moves: str = setting(
        "auto",
        "How pages move: auto, ranks read each other's memory where they can; exchange, through NCCL.",
        choices=("auto", "exchange"),
    )
    transfer_max_ctas: int = setting(
        TRANSFER_CTAS, "GPU thread blocks that transfers take: more are faster and slow what runs beside."
    )
    switch_layers_ahead: int = setting(
        LAYERS_AHEAD, "Layers whose transfers are enqueued before the layer that computes (cuda)."
    )
    seed: int = setting(0, "Of weights, histories and tokens.")
    warmup: int = setting(1, "Repetitions of each cell that are not counted.")
    budget_s: float = setting(0.0, "End cleanly before so many seconds are up; 0: no limit.", unit="s")
    step_timeout_s: float = setting(120.0, "A rank that waits longer for another ends the run.", unit="s")
    out: str = output(Output.FOLDER, "Folder for the JSON document, for example docs/results.")
    label: str = setting(
        "", "A word for the document's name, beside benchmark, date and commit.", form=a_file_word
    )
    commit: str = setting("", "The commit that is measured; default: what git says.", form=a_file_word)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimitivesSettings(BenchSettings):
    """`splash bench primitives`."""

    batch: str = setting("16", "Requests, a list.")
    context: str = setting(
        AUTO,
        "Cached tokens of each request, a list; auto: those of 16K,64K,128K that the model holds, else 1K.",
        unit="tokens",
    )
    layouts: str = setting("TP,CP,DP,DOP", "Layouts whose switches are measured.")
    reps: int = setting(20, "Repetitions; the median counts.", within=COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSettings(BenchSettings):
    """`splash bench switch`."""

    phase: str = setting("prefill", "Steps that switch.", choices=("prefill", "decode"))
    batch: str = setting("16", "Requests, a list.")
    context: str = setting(
        AUTO, "Cached tokens of each request, a list; auto: 16K, or 1K where the model ends.", unit="tokens"
    )
    chunk: str = setting("2K", "Rows of a prefill step, over all requests, a list.", unit="tokens")
    layouts: str = setting("TP,CP,DP,DOP", "Layouts between which to switch.")
    directions: str = setting("", "Only these, for example TP:DP,DOP:CP; default: all between the layouts.")
    modes: str = setting("blocking,overlapped", f"Of {', '.join(SwitchMode)}; ready is always measured.")
    reps: int = setting(15, "Repetitions of each direction, paired and interleaved.", within=COUNT)
    ordinary: int = setting(8, "Decode steps on either side of a switching step.")
    precopy_bytes_per_step: int = setting(
        STAGING_BYTES, "Most that a rank receives beside an ordinary decode step (precopied).", unit="bytes"
    )
    churn_every: int = setting(
        0, "Precopied once more with a request cancelled, admitted or finished every so many steps; 0: not."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySettings(BenchSettings):
    """`splash bench capacity`."""

    layouts: str = setting("", "Layouts to fill; default: all.")
    chunk_tokens: int = setting(
        16384, "Rows of the largest step, for which room is left.", unit="tokens", within=COUNT
    )
    batch: str = setting("1,16,64", "Requests of the decode steps that are recorded, a list.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings(BenchSettings):
    """`splash bench sweep`."""

    phase: str = setting("prefill,decode", "Phases to measure, a list.")
    layouts: str = setting("", "Layouts to measure; default: all.")
    batch: str = setting("1,4,16,64", "Requests, a list.")
    input: str = setting(
        AUTO,
        "Prompt tokens (prefill), cached tokens (decode), a list; auto: those of 1K,4K,16K that the model "
        "holds.",
    )
    chunk_tokens: int = setting(16384, "Most rows of a prefill step.", unit="tokens", within=COUNT)
    reps: int = setting(
        3, "Repetitions of a prefill, as far as --cell-s allows; the median counts.", within=COUNT
    )
    cell_s: float = setting(20.0, "Time for the repetitions of a prefill cell; one is always made.", unit="s")
    steps: int = setting(20, "Decode steps; the median counts.", within=COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementSettings(BenchSettings):
    """`splash bench agreement`."""

    layouts: str = setting("TP,CP,DP,DOP", "Layouts to compare, each with each.")
    batch: int = setting(16, "Sequences that run side by side.", within=COUNT)
    yardstick_batch: int = setting(
        4, "The same ones, so many side by side: each layout beside itself.", within=COUNT
    )
    positions: int = setting(1000, "Decode positions over all sequences, rounded up.", within=COUNT)
    prompt: int = setting(64, "Tokens of each sequence that come before them.", unit="tokens", within=COUNT)
    head_scale: float = setting(
        4.0, "Factor on logits, for figures like a trained model's; random weights spread them by 1."
    )


def sizes(text: str, what: str) -> tuple[int, ...]:
    """`1,4K` as numbers.

    Raises:
        ConfigError: not a list of positive numbers.
    """
    try:
        numbers = tuple(parse_size(part) for part in text.split(",") if part.strip())
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"{what} must be a list of positive numbers like 1,16K, got {text!r}")
    return numbers


def words(text: str) -> tuple[str, ...]:
    """`a, b` as words."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def layouts_of(text: str) -> tuple[Layout, ...]:
    """A list of layouts; all of them when it is empty.

    Raises:
        ConfigError: one is unknown.
    """
    return tuple(_layout(word) for word in words(text)) or tuple(Layout)


def directions_of(text: str, layouts: tuple[Layout, ...]) -> tuple[tuple[Layout, Layout], ...]:
    """`TP:DP,DOP:CP` as pairs; all ordered pairs of `layouts` when it is empty.

    Raises:
        ConfigError: a pair is malformed, or a layout unknown.
    """
    pairs: list[tuple[Layout, Layout]] = []
    for word in words(text):
        before, _, after = word.partition(":")
        pairs.append((_layout(before), _layout(after)))
    return tuple(pairs) or tuple((a, b) for a in layouts for b in layouts if a != b)


def modes_of(text: str) -> tuple[SwitchMode, ...]:
    """A list of switch modes.

    Raises:
        ConfigError: one is unknown.
    """
    unknown = [word for word in words(text) if word not in tuple(SwitchMode)]
    if unknown or not words(text):
        raise ConfigError(f"modes must be of {', '.join(SwitchMode)}, got {text!r}")
    return tuple(SwitchMode(word) for word in words(text))


def as_json(settings: BenchSettings) -> dict[str, Any]:
    """The fields that a result depends on: all but where it is written."""
    fields = dataclasses.asdict(settings)
    return {name: value for name, value in fields.items() if name not in ("out", "commit")}


def _layout(word: str) -> Layout:
    if word.strip().upper() not in tuple(Layout):
        raise ConfigError(f"layout {word!r} is not one of {', '.join(Layout)}")
    return Layout(word.strip().upper())
