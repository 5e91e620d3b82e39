"""Command-line options made from a settings class, so flag, environment, file and docs never disagree."""

import dataclasses
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import typer

from services.outputs import check_outputs
from splash_core.config import resolve

S = TypeVar("S")

_NO = False
_METAVARS: dict[object, str] = {int: "INT", float: "NUMBER", str: "TEXT"}


def settings_command(
    app: typer.Typer, name: str, kind: type[S]
) -> Callable[[Callable[[S, bool], int]], Callable[[S, bool], int]]:
    """Register `body(settings, as_json) -> exit code` as a command with one flag a setting.

    Every command also takes `--config FILE` and `--json`.
    """

    def register(body: Callable[[S, bool], int]) -> Callable[[S, bool], int]:
        def command(**flags: object) -> None:
            config = typing.cast("Path | None", flags.pop("config"))
            as_json = bool(flags.pop("json"))
            settings = resolve(kind, flags=flags, config=config)
            check_outputs(settings)
            raise typer.Exit(body(settings, as_json))

        parameters = [*_parameters(kind), *_common()]
        command.__doc__ = body.__doc__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name)(command)
        return body

    return register


def _common() -> list[inspect.Parameter]:
    config = typer.Option(None, "--config", help="TOML file with settings.", show_default=False)
    as_json = typer.Option(_NO, "--json", help="One line of JSON on stdout; progress goes to stderr.")
    return [_parameter("config", Path | None, config), _parameter("json", bool, as_json)]


def _parameters(kind: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(kind)
    parameters: list[inspect.Parameter] = []
    for field in dataclasses.fields(kind):
        meta = field.metadata
        choices = [choice for choice in meta["choices"] if choice]
        unit = f" [{meta['unit']}]" if meta["unit"] else ""
        default = f" Default: {field.default}." if field.default not in ("", None) else ""
        option = typer.Option(
            None,
            f"--{field.name.replace('_', '-')}",
            help=f"{meta['doc']}{unit}{default}",
            metavar="|".join(choices) if choices else _METAVARS.get(hints[field.name], "TEXT"),
            hidden=meta["hidden"],
            show_default=False,
        )
        parameters.append(_parameter(field.name, str | None, option))
    return parameters


def _parameter(name: str, annotation: object, option: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)
