"""Progress of long commands on stderr: a live line on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


def progress_console() -> Console:
    """A console on stderr that stays there when a library's own output is redirected."""
    return Console(file=sys.stderr, highlight=False)


def warn(text: str) -> None:
    """Say on stderr what a command goes on in spite of; nothing for an empty text."""
    if text:
        progress_console().print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)


@contextmanager
def stages(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Show the stages of one long operation; the yielded function names the stage that begins."""
    if not console.is_terminal:
        started = time.monotonic()
        yield lambda stage: console.print(
            f"{title}: {stage} [{time.monotonic() - started:.0f} s]", markup=False
        )
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, redirect_stderr=False) as progress:
        task = progress.add_task(title, total=None)
        yield lambda stage: progress.update(task, description=f"{title}: {stage}")
