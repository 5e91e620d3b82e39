"""`python -m services.bench`: the benchmarks on ranks without the rest of the `splash` command."""

from rich.console import Console
from rich.markup import escape

from services.bench.cli import app
from services.exit_codes import exit_code
from splash_core.errors import SplashError


def main() -> None:
    """Run a command; errors that are meant to be read end it with their exit code."""
    try:
        app(standalone_mode=True)
    except SplashError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        raise SystemExit(exit_code(error)) from None


# Guarded: rank processes import this module again.
if __name__ == "__main__":
    main()
