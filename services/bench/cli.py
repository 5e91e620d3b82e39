"""The commands that drive ranks directly, from primitives to agreement; and the results page.

`splash bench` shows them beside `serve`; `python -m services.bench` shows them alone, on machines that have
torch but not what the services need.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.bench.calibrate_command import calibrate
from services.bench.calibrate_settings import CalibrateSettings
from services.bench.results_page import section, write_page
from services.bench.settings import (
    AgreementSettings,
    BenchSettings,
    CapacitySettings,
    PrimitivesSettings,
    SweepSettings,
    SwitchSettings,
)
from services.options import settings_command
from services.outputs import check_output
from splash_core.settings_base import Output

app = typer.Typer(no_args_is_help=True, help="Measure, and write tables with machine, commit and settings.")


@app.callback()
def _group() -> None:
    """Measure, and write tables with machine, commit and settings."""


@settings_command(app, "primitives", PrimitivesSettings)
def primitives_command(settings: PrimitivesSettings, as_json: bool) -> int:
    """One layer's weight gathers and KV collectives, next to the backend's best for the same bytes.

    Example: `splash bench primitives --ranks 4 --batch 16 --context 16K,64K --out docs/results`
    """
    return _measure("primitives", settings, as_json=as_json)


@settings_command(app, "switch", SwitchSettings)
def switch_command(settings: SwitchSettings, as_json: bool) -> int:
    """What a switch adds to the step that carries it, in every direction and mode.

    Example: `splash bench switch --ranks 4 --context 16K --chunk 2K,16K --out docs/results`
    """
    return _measure("switch", settings, as_json=as_json)


@settings_command(app, "capacity", CapacitySettings)
def capacity_command(settings: CapacitySettings, as_json: bool) -> int:
    """Distinct tokens that fit in each layout, next to the memory account.

    Example: `splash bench capacity --ranks 4 --out docs/results`
    """
    return _measure("capacity", settings, as_json=as_json)


@settings_command(app, "sweep", SweepSettings)
def sweep_command(settings: SweepSettings, as_json: bool) -> int:
    """Prefill rates and decode step times of each layout, over batches and lengths.

    Example: `splash bench sweep --ranks 4 --phase decode --batch 1,16,64 --input 4K,32K --out docs/results`
    """
    return _measure("sweep", settings, as_json=as_json)


@settings_command(app, "agreement", AgreementSettings)
def agreement_command(settings: AgreementSettings, as_json: bool) -> int:
    """How often layouts name the same next token, beside the same layout at another batch size.

    Example: `splash bench agreement --ranks 4 --positions 1000 --layers 61 --out docs/results`
    """
    return _measure("agreement", settings, as_json=as_json)


settings_command(app, "calibrate", CalibrateSettings)(calibrate)


@app.command("page")
def page_command(
    results: Annotated[Path, typer.Argument(help="Folder with JSON documents; README.md is written there.")],
) -> None:
    """Write the results page from the JSON documents.

    Example: `splash bench page docs/results`
    """
    check_output(Output.FOLDER, results, flag="RESULTS")
    Console(stderr=True).print(f"wrote {write_page(results)}", highlight=False)


def _measure(name: str, settings: BenchSettings, *, as_json: bool) -> int:
    # Imported here: torch takes seconds that `splash bench --help` need not spend.
    from services.bench.spmd import resolved, run_spmd

    program = importlib.import_module(f"services.bench.{name}").run
    document = run_spmd(program, resolved(settings))
    text = json.dumps(document) + "\n" if as_json else section(document)
    sys.stdout.write(text)
    return 0
