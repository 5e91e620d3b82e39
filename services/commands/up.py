"""`splash up`: everything on one host, as one command that lives and dies as a unit."""

import json
import signal
import sys
import threading
from types import FrameType

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from services.exit_codes import Exit, exit_code
from services.launch import Stack, StackFailed, StartInterrupted
from services.options import settings_command
from services.progress import warn
from splash_core.config import UpSettings
from splash_core.errors import ConfigError, SplashError

app = typer.Typer()
_CHECK_S = 0.1


@settings_command(app, "up", UpSettings)
def up(settings: UpSettings, as_json: bool) -> int:
    """Start everything on this host; Ctrl-C drains, a second Ctrl-C ends at once; both exit 0.

    Answers that outlive `--drain-timeout-s` are ended with an error, counted here, and the exit code is 1.

    Prints the URL when ready. If any process dies, says which and why, ends the rest and exits 1.

    Example: `splash up --model smollm2-mla --decode-layout DOP --port 8000`
    """
    if not settings.model:
        raise ConfigError("--model is required: a checkpoint folder or a fetched model's name")
    console = Console(stderr=True)
    stopping, hurry = threading.Event(), threading.Event()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        (hurry if stopping.is_set() else stopping).set()

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    stack = Stack(settings)
    console.print(f"logs: {stack.run_dir}", highlight=False, soft_wrap=True)
    try:
        _start(stack, console, stopping)
        warn(stack.warning)
        _announce(stack, console, as_json=as_json)
        while not stopping.wait(_CHECK_S):
            stack.check()
    except StartInterrupted:
        return Exit.DONE
    except SplashError as error:
        stack.stop(drain=False)
        _tell(error, console)
        return error.death.code if isinstance(error, StackFailed) and error.refused else exit_code(error)
    console.print("draining …")
    stack.stop(drain=True, hurry=hurry)
    if not (cut := stack.cut_short()):
        return Exit.DONE
    console.print(f"error: {cut}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    return Exit.FAILED


def _tell(error: SplashError, console: Console) -> None:
    console.print(f"error: {error}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    # A child that refused its settings has said all in the error itself.
    lines = error.death.lines[-8:] if isinstance(error, StackFailed) and not error.refused else ()
    for line in lines:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _start(stack: Stack, console: Console, stopping: threading.Event) -> None:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def report(process: str, state: str, done: float) -> None:
            if process not in tasks:
                tasks[process] = progress.add_task("", total=1)
            progress.update(tasks[process], description=f"{process}: {state}", completed=done)

        stack.start(report, interrupted=stopping)


def _announce(stack: Stack, console: Console, *, as_json: bool) -> None:
    if as_json:
        line = {"url": stack.url, "admin": stack.admin_url, "run_dir": str(stack.run_dir), "pids": stack.pids}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        return
    console.print(f"[bold green]ready[/]  {stack.url}/v1  (admin {stack.admin_url})", highlight=False)
