"""`splash plan`: what a model needs on given hardware and which layouts fit, without weights or GPU."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group

from services.admin_client import emit
from services.commands.compare_page import comparison_page
from services.commands.plan_tables import report_tables
from services.progress import warn
from splash_core.checkpoints.cache import DEMO_MODEL
from splash_core.cost.footprint import Deployment
from splash_core.cost.measured_on import warning
from splash_core.cost.precision import PRECISIONS, named_precision
from splash_core.errors import ConfigError
from splash_core.layout.catalog import named_layouts
from splash_core.layout.layout import STANDARD_LAYOUTS, Layout
from splash_core.leader.build import fetched_model
from splash_core.leader.profile_file import read_profile
from splash_core.policy.comparison import PaperComparison, compare_with_paper
from splash_core.policy.plan import build_plan
from splash_core.policy.regimes import BATCHES
from splash_core.scheduling.buckets import decode_buckets
from splash_core.spec.catalogue import named_spec
from splash_core.spec.fields import read_json
from splash_core.spec.hardware import GPUS, GpuSpec, named_gpu
from splash_core.spec.model import ModelSpec
from splash_core.units import GROUP_RANKS

app = typer.Typer()

_CHUNK_ROWS_PER_RANK = 2048
STANDARD = ",".join(STANDARD_LAYOUTS)

Model = Annotated[
    str, typer.Option("--model", help="A known or fetched model's name, a config.json, or its directory.")
]
Gpu = Annotated[str, typer.Option("--gpu", help=f"{', '.join(GPUS)}.")]
Ranks = Annotated[int, typer.Option("--ranks", min=1, max=GROUP_RANKS, help="Ranks of the group.")]
Fraction = Annotated[float, typer.Option("--fraction", help="Part of device memory to use.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, fp8, bf16, fp32 or fp64.")]
PageSize = Annotated[int, typer.Option("--page-size", min=1, help="Tokens per KV page.")]
Chunk = Annotated[
    int, typer.Option("--chunk-tokens", min=0, help="Rows of the largest step; 0: 2,048 for each rank.")
]
Layouts = Annotated[
    str, typer.Option("--layouts", help=f"Layouts to compare, separated by commas; of {', '.join(Layout)}.")
]
Graphs = Annotated[
    str,
    typer.Option(
        "--graphs", help="Whether decode steps are replayed from recordings: auto (on GPUs), on or off."
    ),
]
Compare = Annotated[
    str, typer.Option("--compare", help="`paper`: our order of layouts against the paper's measured winners.")
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile", help="File that `splash calibrate` wrote, to predict with; default: --gpu's figures."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout.")]


@app.command("plan")
def plan_command(
    model: Model,
    ranks: Ranks,
    gpu: Gpu = "h200",
    fraction: Fraction = 0.85,
    dtype: Dtype = "auto",
    page_size: PageSize = 64,
    chunk_tokens: Chunk = 0,
    layouts: Layouts = STANDARD,
    profile: Profile = None,
    graphs: Graphs = "auto",
    compare: Compare = "",
    json: Json = False,
) -> None:
    """Footprints, capacity, longest context, the twelve switches and the best layout per load.

    Exit code 3 when no layout fits, with the nearest setting that does.

    Example: `splash plan --model deepseek-v3.2 --gpu h200 --ranks 8 --dtype fp8 --fraction 0.9`
    """
    spec, device = load_spec(model), named_gpu(gpu)
    check_fraction(fraction)
    precision = named_precision(chosen_dtype(dtype.lower(), spec, device))
    measured = None if profile is None else read_profile(profile)
    if measured is not None:
        on = "cpu" if device.name == "cpu" else "cuda"
        measured.check_group(device=on, dtype=precision.name, ranks=ranks)
        warn(warning(measured, spec))
    deployment = Deployment(
        precision=precision,
        num_ranks=ranks,
        memory_bytes=device.memory_bytes,
        fraction=fraction,
        page_size=page_size,
        chunk_tokens=chunk_tokens or _CHUNK_ROWS_PER_RANK * ranks,
        runtime_bytes=device.runtime_bytes,
    )
    if compare:
        if compare != "paper":
            raise ConfigError(f"--compare {compare!r} is not known; `paper` is")
        _compare(compare_with_paper(spec, device, deployment, measured), as_json=json)
        return
    rows = _recorded_rows(graphs, device, ranks)
    report = build_plan(spec, device, deployment, named_layouts(layouts), measured, recorded_rows=rows)
    if json:
        emit(report.to_json(), as_json=True, text="")
    else:
        Console().print(Group(*report_tables(report)))


def _compare(comparison: PaperComparison, *, as_json: bool) -> None:
    if as_json:
        emit(comparison.to_json(), as_json=True, text="")
    else:
        typer.echo(comparison_page(comparison), nl=False)


def check_fraction(fraction: float) -> None:
    """Raise `ConfigError` unless it is a part of a device's memory."""
    if not 0 < fraction <= 1:
        raise ConfigError(f"--fraction must be above 0 and at most 1, got {fraction}")


def _recorded_rows(graphs: str, device: GpuSpec, ranks: int) -> int:
    """Home rows that a group records for which runs as many requests as the largest batch of the regimes."""
    replays = records_steps(graphs, gpu=device.name != "cpu")
    return decode_buckets(max(BATCHES), ranks)[-1] if replays else 0


def records_steps(graphs: str, *, gpu: bool) -> bool:
    """Whether groups replay decode steps, as `--graphs` of services says it.

    Raises:
        ConfigError: it is neither auto nor on nor off.
    """
    if graphs not in ("auto", "on", "off"):
        raise ConfigError(f"--graphs {graphs!r} is not known; name one of auto, on, off")
    return gpu if graphs == "auto" else graphs == "on"


def load_spec(model: str) -> ModelSpec:
    """The spec of a config.json, of a directory that holds one, of a known model, or of a fetched one.

    Raises:
        ConfigError: none of them; lists the known names.
    """
    path = Path(model)
    if path.is_dir():
        return ModelSpec.from_checkpoint(path)
    if path.is_file():
        return ModelSpec.from_hf(read_json(path), name=path.resolve().parent.name, where=str(path))
    fetched = fetched_model(model)
    if fetched is not None:
        return ModelSpec.from_checkpoint(fetched, name=fetched.name)
    if model == DEMO_MODEL:
        raise ConfigError(f"model {model} is not fetched; run `splash model fetch {model}` first")
    return named_spec(model)


def chosen_dtype(dtype: str, spec: ModelSpec, gpu: GpuSpec) -> str:
    """Element types by name; `auto` is what the device and the checkpoint suggest.

    Raises:
        ConfigError: the name is unknown; lists the known ones.
    """
    if dtype not in (*PRECISIONS, "auto"):
        raise ConfigError(f"--dtype {dtype!r} is not known; name one of auto, {', '.join(PRECISIONS)}")
    if dtype != "auto":
        return dtype
    if "bf16" in gpu.flops and "fp32" not in gpu.flops:
        return "fp8" if spec.quantization == "fp8" else "bf16"
    return "fp32"
