"""Benchmarks of what is served, and of handoffs; those on ranks are in `services.bench.cli`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from services.bench.burst_settings import BurstSettings
from services.bench.cli import app
from services.bench.document import keep_each, measured_here
from services.bench.handoff import HandoffSettings, handoff_rows
from services.bench.results_page import section
from services.bench.rollout_command import rollout
from services.bench.rollout_settings import RolloutSettings
from services.bench.shared_link_settings import SharedLinkSettings
from services.bench.workload import FIXED, POLICY, BenchSizes, rate_name
from services.options import settings_command
from services.outputs import check_output
from services.progress import progress_console, stages
from splash_core.settings_base import Output

__all__ = ["app"]

settings_command(app, "rollout", RolloutSettings)(rollout)

ALL = ",".join((*FIXED, POLICY))
Layouts = Annotated[str, typer.Option(help="Which to measure, separated by commas.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the JSON document, for example docs/results.")]
Json = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout.")]


@app.command("serve")
def serve(
    layouts: Layouts = ALL,
    threads: Annotated[int, typer.Option(help="Threads of the baseline.")] = 2,
    reps: Annotated[int, typer.Option(help="Repetitions; the median counts.")] = 3,
    decode_tokens: Annotated[int, typer.Option(help="Tokens that each stream generates.")] = 64,
    prefill_tokens: Annotated[
        int, typer.Option(help="Length of the prompt that prefill is timed on.")
    ] = 1000,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Tokens per second of `splash up` on the demo model, against transformers on the same checkpoint.

    Example: `splash bench serve --out docs/results`
    """
    if out is not None:
        check_output(Output.FOLDER, out, flag="--out")
    # Imported here: machines for the other benchmarks need not have what serving needs.
    from services.bench.serve import serve_rows
    from services.commands.model import fetch_demo_model

    model = fetch_demo_model()
    workload = BenchSizes(reps=reps, decode_tokens=decode_tokens, prefill_prompt=prefill_tokens)
    with stages(progress_console(), "bench serve") as progress:
        baseline = _baseline_rates(model, workload, threads, progress)
        rows = serve_rows(
            model, workload=workload, baseline=baseline, progress=progress, layouts=layouts.split(",")
        )
    settings: dict[str, Any] = dataclasses.asdict(workload) | {
        "model": model.name,
        "baseline_threads": threads,
    }
    document = measured_here("serve", settings=settings, rows=rows)
    if out is not None:
        document.write(out)
    if as_json:
        sys.stdout.write(json.dumps(document.to_json()) + "\n")
    else:
        Console().print(_table(rows))


@settings_command(app, "handoff", HandoffSettings)
def handoff(settings: HandoffSettings, as_json: bool) -> int:
    """Handoffs of scattered pages on this host, next to raw writes of the library and to memcpy.

    Example: `splash bench handoff --out docs/results`
    """
    with stages(progress_console(), "bench handoff") as progress:
        rows = handoff_rows(settings, progress)
    measured = {name: value for name, value in dataclasses.asdict(settings).items() if name != "out"}
    document = measured_here("handoff", settings=measured, rows=rows)
    if settings.out:
        document.write(Path(settings.out))
    text = json.dumps(document.to_json()) + "\n" if as_json else section(document.to_json())
    sys.stdout.write(text)
    return 0


@settings_command(app, "burst", BurstSettings)
def burst(settings: BurstSettings, as_json: bool) -> int:
    """Bursts of equal requests through one prefill and one decode group, in each layout and under the policy.

    Example: `splash bench burst --bursts 1:512:16,16:128:32 --arms TP/DP,DOP/DP,policy --out docs/results`
    """
    # Imported here: machines for the other benchmarks need not have what serving needs.
    from services.bench.burst import measure

    with stages(progress_console(), "bench burst") as progress:
        _, shown = keep_each(measure(settings, progress), out=settings.out, label=settings.label)
    sys.stdout.write(json.dumps(shown) + "\n" if as_json else section(shown))
    return 0


@settings_command(app, "shared-link", SharedLinkSettings)
def shared_link(settings: SharedLinkSettings, as_json: bool) -> int:
    """Switches and handoffs on one limited link between two hosts (network namespaces; needs root).

    Example: `splash bench shared-link --out docs/results`
    """
    # Imported here: machines for the other benchmarks need not have what serving needs.
    from services.bench.shared_link import run

    document = run(settings).to_json()
    sys.stdout.write(json.dumps(document) + "\n" if as_json else section(document))
    return 0


def _baseline_rates(model: Path, workload: BenchSizes, threads: int, progress: Any) -> dict[str, float]:
    # Imported here: torch and transformers take seconds that `splash bench --help` need not spend.
    from services.bench.baseline import Baseline

    progress("loading transformers")
    baseline = Baseline(model, num_threads=threads)
    rates: dict[str, float] = {}
    for batch in workload.batches:
        progress(f"transformers: decode, {batch} at once")
        rates[rate_name("decode", batch)] = baseline.decode_rate(workload, batch)
    progress("transformers: prefill")
    rates[rate_name("prefill", 1)] = baseline.prefill_rate(workload)
    return rates


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="tokens per second", title_justify="left")
    for column in ("what", "layout"):
        table.add_column(column)
    for column in ("batch", "splash", "transformers", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        values = (row["batch"], row["tokens_per_s"], row["baseline_tokens_per_s"], row["ratio"])
        table.add_row(row["what"], row["layout"], *map(str, values))
    return table
