"""One module a command: each exposes `app`, a Typer with one command or a group of them (services/cli.py)."""
