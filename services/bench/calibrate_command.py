"""What `splash calibrate` does around the ranks: settings in, document and profile out."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.bench.calibrate_settings import CalibrateSettings
from services.bench.document import read_earlier
from services.bench.results_page import section
from services.bench.settings import layouts_of, sizes
from services.bench.shapes import measured_spec, shape_of
from services.outputs import replace_text


def calibrate(settings: CalibrateSettings, as_json: bool) -> int:  # noqa: FBT001
    """Measure what predicts step times on a group's devices, and write it as a profile.

    Measures single operations and whole steps with random weights, fits the constants of the cost model, and
    says how well they predict steps that the fit has not seen.

    Example: `splash calibrate --model smollm2-mla --ranks 2 --out profile.json`
    """
    _check(settings)
    # Imported here: `splash calibrate --help` needs none of it.
    from services.bench.calibrate_fit import concluded, profile_of

    measured = _measured(settings)
    file = measured.pop("file", "")
    document = concluded(measured)
    if file:
        replace_text(Path(file), json.dumps(document, indent=2) + "\n")
    if settings.out:
        replace_text(Path(settings.out), profile_of(document).to_json() + "\n")
        sys.stderr.write(f"calibrate: wrote {settings.out}\n")
    sys.stdout.write(json.dumps(document) + "\n" if as_json else section(document))
    return 0


def _check(settings: CalibrateSettings) -> None:
    """What cannot work is said before anything is measured, and by this process.

    Raises:
        ConfigError: names the setting.
    """
    if settings.measured:
        return
    if settings.model != "auto":
        measured_spec(settings.model, layers=settings.layers, experts=settings.experts)
    layouts_of(settings.layouts)
    for name in ("batch", "prompts", "context", "rows"):
        sizes(getattr(settings, name), f"--{name}")


def _measured(settings: CalibrateSettings) -> dict[str, Any]:
    document = _earlier(settings) if settings.measured else _on_ranks(settings)
    if settings.streams:
        from services.bench.calibrate_served import serve

        told = document["settings"]
        rows = [row for row in document["rows"] if "served" not in row]
        served = serve(replace(settings, model=told["checkpoint"], ranks=told["ranks"]), dtype=told["dtype"])
        document["rows"] = [*rows, *served]
    return document


def _earlier(settings: CalibrateSettings) -> dict[str, Any]:
    read = read_earlier(
        Path(settings.measured), flag="--measured", bench="calibrate", command="splash calibrate --results"
    )
    return read | {"file": settings.measured}


def _on_ranks(settings: CalibrateSettings) -> dict[str, Any]:
    from services.bench.calibrate import run
    from services.bench.spmd import resolved, run_spmd

    # The recorder writes into `out`; where files lie is no part of a result.
    asked = replace(settings, model=shape_of(settings.model), out=settings.results, results="")
    return run_spmd(run, resolved(asked))
