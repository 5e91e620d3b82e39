"""The `splash` command: a table of commands, each in a module that is imported only when it is used.

Importing torch or grpc for `splash --help` would take seconds, so the table carries the one-line help. To add
a command, write `services/commands/NAME.py` with `app = typer.Typer(...)` and one line here.
Exit codes: `exit_codes.py`.
"""

import importlib
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from services.exit_codes import Exit, exit_code
from splash_core.errors import SplashError

COMMANDS: dict[str, str] = {
    "up": "Start everything on this host: router, one prefill group, one decode group.",
    "demo": "Ask a real question while both phases switch through all layouts.",
    "prefill": "Run one prefill group.",
    "decode": "Run one decode group.",
    "router": "Run the router with its OpenAI gateway.",
    "model": "Fetch demo weights, or make a tiny random checkpoint.",
    "layout": "See and steer layouts.",
    "policy": "See, check, set and compare the layout policy of a deployment.",
    "canary": "Whether fixed prompts are still answered as at first.",
    "plan": "What a model needs and which layouts fit, without weights or GPU.",
    "calibrate": "Measure what predicts step times on a group's devices, as a profile.",
    "simulate": "A workload under the policy, fixed layouts and an oracle, without GPU.",
    "bench": "Measure, and write tables with machine, commit and settings.",
    "audit": "Every page: owner, lease, writer.",
    "doctor": "Check versions, libraries, ports, rails, the transport, and a running cluster.",
}


class _LazyGroup(TyperGroup):
    """Lists the table; imports one command's module when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the table's order."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """A stand-in with name and help, for overviews and suggestions."""
        del ctx
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is about to run."""
        name, stand_in, rest = super().resolve_command(ctx, args)
        if name is None or stand_in is None:
            return name, stand_in, rest
        command = typer.main.get_command(importlib.import_module(f"services.commands.{name}").app)
        command.name = name
        return name, command, rest


app = typer.Typer(
    cls=_LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


@app.callback()
def _root() -> None:
    """Splash serves MLA models on prefill and decode groups whose attention layout changes while they run."""


def main() -> None:
    """Entry point of the console script."""
    console = Console(stderr=True)
    try:
        app(standalone_mode=True)
    except SplashError as error:
        _tell(console, str(error))
        raise SystemExit(exit_code(error)) from None
    except OSError as error:
        # A file or an address that this host refuses; the places that know a remedy have named it before.
        place = f"{error.filename}: " if error.filename else ""
        _tell(console, f"{place}{error.strerror or error}")
        raise SystemExit(Exit.FAILED) from None


def _tell(console: Console, text: str) -> None:
    console.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
