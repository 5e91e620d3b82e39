"""`splash simulate`: a workload under the policy, fixed layouts and an oracle, without a GPU."""

import math
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group

from services.admin_client import emit
from services.commands.plan import (
    STANDARD,
    Dtype,
    Fraction,
    Gpu,
    Graphs,
    Json,
    Layouts,
    PageSize,
    Profile,
    check_fraction,
    chosen_dtype,
    load_spec,
    records_steps,
)
from services.commands.simulate_plot import new_figure, write_plot
from services.commands.simulate_tables import comparison_tables
from services.outputs import check_output
from services.progress import progress_console, stages, warn
from splash_core.cost.footprint import Deployment
from splash_core.cost.measured_on import warning
from splash_core.cost.model import CostModel
from splash_core.cost.precision import named_precision
from splash_core.cost.profile import HardwareProfile, analytical_profile
from splash_core.errors import ConfigError
from splash_core.layout.catalog import named_layouts
from splash_core.leader.profile_file import read_profile
from splash_core.policy.config import load_document
from splash_core.scheduling.roles import Role
from splash_core.settings_base import Output
from splash_core.simulate.comparison import Objectives, compare
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.generators import GENERATORS, Size, generate
from splash_core.simulate.policies import Policies
from splash_core.simulate.sizing import Shape, fleet_of_memory, fleet_of_room
from splash_core.simulate.workload import Scale, Workload, read_trace
from splash_core.spec.hardware import named_gpu
from splash_core.units import GROUP_RANKS, STAGING_BYTES

app = typer.Typer()

_TRACES = ("conversation", "synthetic")
_NAMES = ", ".join((*GENERATORS, *_TRACES))


Name = Annotated[
    str, typer.Option("--workload", help=f"{_NAMES}; the last two need --trace with their file.")
]
Trace = Annotated[
    Path | None, typer.Option("--trace", help="JSON lines: timestamp (ms), input_length, output_length.")
]
PolicyOption = Annotated[str, typer.Option("--policy", help="off, auto, or a TOML file.")]
Start = Annotated[
    str, typer.Option("--start", help="When the workload begins, for calendars: 2026-03-01T22:00+01:00.")
]
ModelName = Annotated[str, typer.Option("--model", help="As in `splash plan`.")]
Ranks = Annotated[int, typer.Option("--ranks", min=1, max=GROUP_RANKS, help="Ranks of each group.")]
PrefillGroups = Annotated[int, typer.Option("--prefill-groups", min=1, help="Groups that compute prompts.")]
DecodeGroups = Annotated[int, typer.Option("--decode-groups", min=1, help="Groups that generate.")]
CombinedGroups = Annotated[
    int, typer.Option("--combined-groups", min=0, help="Groups that do both, in place of the others.")
]
Chunk = Annotated[int, typer.Option("--chunk-tokens", min=1, help="Rows of the largest step.")]
MaxRunning = Annotated[int, typer.Option("--max-running", min=1, help="Requests of a group at once.")]
KvBytes = Annotated[
    int, typer.Option("--kv-bytes", min=0, help="KV room of a rank; 0: what --fraction leaves.")
]
PrecopyRate = Annotated[
    int,
    typer.Option(
        "--precopy-bytes-per-step",
        min=1,
        help="What a rank receives in an ordinary step while a switch copies ahead.",
    ),
]
HandoffRate = Annotated[
    float, typer.Option("--handoff-gbps", min=0, help="A rank's push rate in GB/s; 0: its link's in θ.")
]
Requests = Annotated[int, typer.Option("--requests", min=0, help="How many; 0: 256, or the whole trace.")]
Rate = Annotated[float, typer.Option("--rate", help="Mean arrivals per second of generated workloads.")]
Lengths = Annotated[float, typer.Option("--lengths", help="Multiplies prompts and outputs.")]
Speed = Annotated[float, typer.Option("--speed", help="Multiplies the arrival rate of a trace.")]
Seed = Annotated[int, typer.Option("--seed", help="Of generated workloads.")]
Ttft = Annotated[float, typer.Option("--ttft", help="Good service: seconds to the first token, at most.")]
Itl = Annotated[float, typer.Option("--itl", help="Good service: mean ms between tokens, at most.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Write the timeline as a PNG.")]


@app.command("simulate")
def simulate_command(
    workload: Name = "",
    trace: Trace = None,
    policy: PolicyOption = "auto",
    start: Start = "",
    profile: Profile = None,
    model: ModelName = "deepseek-v3",
    gpu: Gpu = "h200",
    dtype: Dtype = "fp8",
    fraction: Fraction = 0.85,
    layouts: Layouts = STANDARD,
    ranks: Ranks = 8,
    prefill_groups: PrefillGroups = 1,
    decode_groups: DecodeGroups = 1,
    combined_groups: CombinedGroups = 0,
    page_size: PageSize = 64,
    chunk_tokens: Chunk = 8192,
    max_running: MaxRunning = 256,
    kv_bytes: KvBytes = 0,
    precopy_bytes_per_step: PrecopyRate = STAGING_BYTES,
    graphs: Graphs = "auto",
    handoff_gbps: HandoffRate = 0.0,
    requests: Requests = 0,
    rate: Rate = 4.0,
    lengths: Lengths = 1.0,
    speed: Speed = 1.0,
    seed: Seed = 0,
    ttft: Ttft = 2.0,
    itl: Itl = 100.0,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Throughput, TTFT, ITL, goodput, switches and regret of a workload on a fleet that need not exist.

    Example: `splash simulate --workload rl-rollout --model deepseek-v3 --gpu h200 --ranks 8`
    """
    _check(plot)
    scale = Scale(lengths=lengths, speed=speed, requests=requests or None)
    asked = _workload(workload, trace, scale, Size(requests=requests or 256, rate=rate, scale=scale), seed)
    shape = Shape(
        groups=_groups(prefill_groups, decode_groups, combined_groups),
        chunk_tokens=chunk_tokens,
        max_running=max_running,
        precopy_bytes_per_step=precopy_bytes_per_step,
        handoff_bps=_finite("--handoff-gbps", handoff_gbps * 1e9) or None,
        layouts=named_layouts(layouts),
    )
    cost = _cost_model(model, _profile(profile, gpu, model, dtype), ranks)
    fleet = _fleet(cost, shape, gpu, graphs, fraction=fraction, page_size=page_size, kv_bytes=kv_bytes)
    _compare(fleet, asked, _policies(policy, start), _objectives(ttft, itl), plot=plot, as_json=json)


def _compare(
    fleet: Fleet,
    workload: Workload,
    policies: Policies,
    objectives: Objectives,
    *,
    plot: Path | None,
    as_json: bool,
) -> None:
    with stages(progress_console(), "simulate") as stage:
        found = compare(fleet, workload, policies, objectives=objectives, progress=stage)
    if plot is not None:
        write_plot(found, plot)
    if as_json:
        emit(found.to_json(), as_json=True, text="")
    else:
        Console().print(Group(*comparison_tables(found)))


def _objectives(ttft_s: float, itl_ms: float) -> Objectives:
    for name, bound in (("--ttft", ttft_s), ("--itl", itl_ms)):
        if not 0 < bound < math.inf:
            raise ConfigError(f"{name} must be above 0 and finite, got {bound}")
    return Objectives(ttft_s=ttft_s, itl_s=itl_ms / 1e3)


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ConfigError(f"{name} must be finite, also in bytes per second, got {value}")
    return value


def _check(plot: Path | None) -> None:
    """Whether it can be drawn, before the work rather than after it."""
    if plot is not None:
        new_figure(plot)
        check_output(Output.FILE, plot, flag="--plot")


def _policies(policy: str, start: str) -> Policies:
    document = load_document(policy)
    if not start:
        return Policies(document=document)
    try:
        begin = datetime.fromisoformat(start)
    except ValueError:
        raise ConfigError(f"--start {start}: give a date and time, such as 2026-03-01T22:00+01:00") from None
    if begin.tzinfo is None:
        begin = begin.replace(tzinfo=UTC)
    return Policies(document=document, start_s=begin.timestamp())


def _groups(prefill: int, decode: int, combined: int) -> dict[Role, int]:
    return {Role.COMBINED: combined} if combined else {Role.PREFILL: prefill, Role.DECODE: decode}


def _workload(name: str, trace: Path | None, scale: Scale, size: Size, seed: int) -> Workload:
    if trace is not None:
        if name in GENERATORS:
            raise ConfigError(f"--workload {name} is generated; leave it out, or leave --trace out")
        with trace.open(encoding="utf-8") as lines:
            return read_trace(lines, name=name or trace.stem, scale=scale)
    if name in _TRACES:
        raise ConfigError(f"--workload {name} is a trace; give its file with --trace")
    if not name:
        raise ConfigError(f"nothing to simulate; give --trace FILE, or --workload with one of {_NAMES}")
    if scale.speed != 1:
        raise ConfigError(f"--speed {scale.speed:g} is for traces; {name} has --rate")
    return generate(name, random.Random(seed), size)


def _profile(path: Path | None, gpu: str, model: str, dtype: str) -> HardwareProfile:
    if path is not None:
        theta = read_profile(path)
        asked = (
            (f"--dtype {dtype}", dtype.lower() in ("auto", theta.dtype)),
            (
                f"--gpu {gpu}",
                (gpu == "cpu") == (theta.device == "cpu"),
            ),
        )
        for said, suits in asked:
            if not suits:
                warn(f"{said} does not count: --profile {path} is for {theta.dtype} on {theta.device}")
        return theta
    device = named_gpu(gpu)
    return analytical_profile(device, dtype=chosen_dtype(dtype.lower(), load_spec(model), device))


def _cost_model(model: str, theta: HardwareProfile, ranks: int) -> CostModel:
    theta.check_group(device=theta.device, dtype=theta.dtype, ranks=ranks)
    spec = load_spec(model)
    warn(warning(theta, spec))
    return CostModel(spec=spec, precision=named_precision(theta.dtype), profile=theta, num_ranks=ranks)


def _fleet(
    model: CostModel, shape: Shape, gpu: str, graphs: str, *, fraction: float, page_size: int, kv_bytes: int
) -> Fleet:
    check_fraction(fraction)
    shape = replace(shape, records_steps=records_steps(graphs, gpu=model.profile.device != "cpu"))
    if kv_bytes:
        return fleet_of_room(model, kv_bytes=kv_bytes, page_size=page_size, shape=shape)
    device = named_gpu("cpu" if model.profile.device == "cpu" else gpu)
    deployment = Deployment(
        precision=model.precision,
        num_ranks=model.num_ranks,
        memory_bytes=model.profile.memory_bytes or device.memory_bytes,
        fraction=fraction,
        page_size=page_size,
        chunk_tokens=shape.chunk_tokens,
        runtime_bytes=device.runtime_bytes,
    )
    return fleet_of_memory(model, deployment, shape)
