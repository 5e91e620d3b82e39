"""Exit codes are one table: of every error, of every answer of the admin port, for every command."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from services import cli
from services.cli import COMMANDS, main
from services.exit_codes import Exit, exit_code
from services.router.errors import error_object, status_of
from splash_core import errors
from tests.support.admin_port import Admin

_PAGE = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text()

CODES: dict[type[errors.SplashError], Exit] = {
    errors.InvalidRequest: Exit.USAGE,
    errors.ContextTooLong: Exit.USAGE,
    errors.NotFound: Exit.USAGE,
    errors.Overloaded: Exit.FAILED,
    errors.Unavailable: Exit.FAILED,
    errors.GroupFailed: Exit.FAILED,
    errors.DeadlineExceeded: Exit.FAILED,
    errors.Conflict: Exit.INFEASIBLE,
    errors.Blocked: Exit.FAILED,
    errors.Outdated: Exit.FAILED,
    errors.Infeasible: Exit.INFEASIBLE,
    errors.ConfigError: Exit.USAGE,
    errors.InvariantBroken: Exit.FAILED,
}

NEVER_ANSWERED = (errors.Infeasible, errors.ConfigError)
"""A router with such settings does not start."""

CALLS = {
    "layout get": "GET /admin/layouts",
    "layout set decode DP": "POST /admin/layout",
    "layout pin decode DP": "POST /admin/layout/pin",
    "layout unpin decode": "POST /admin/layout/unpin",
    "layout explain": "GET /admin/decisions?last=5",
    "policy get": "GET /admin/policy",
    "policy diff": "GET /admin/policy/diff",
    "policy history": "GET /admin/policy/versions",
    "policy rollback 1": "POST /admin/policy/rollback",
    "canary get": "GET /admin/canary",
    "canary reset": "POST /admin/canary/reset",
    "audit": "GET /admin/audit",
}
"""Commands of the admin port and what they ask first."""


def splash(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["splash", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def commands() -> Iterator[list[str]]:
    """The words of every command that can be run."""
    for name in COMMANDS:
        command = typer.main.get_command(importlib.import_module(f"services.commands.{name}").app)
        subcommands: dict[str, object] | None = getattr(command, "commands", None)
        yield from ([name, sub] for sub in subcommands) if subcommands else [[name]]


def test_every_error_has_a_code() -> None:
    known = {kind for kind in vars(errors).values() if isinstance(kind, type)} - {errors.SplashError}
    assert known == set(CODES)
    for kind, code in CODES.items():
        assert exit_code(kind("x")) is code


def test_the_page_is_the_table() -> None:
    rows = re.findall(r"^\| (\d) \| ([A-Z]+) \|", _PAGE, re.MULTILINE)
    assert rows == [(str(code.value), code.name) for code in Exit]
    told = re.findall(r"^\| ([A-Za-z, ]+) \| .*? \| (\d) \|", _PAGE, re.MULTILINE)
    by_name = {name: int(code) for names, code in told for name in names.split(", ")}
    rest = by_name.pop("any other")
    assert by_name == {kind.__name__: code for kind, code in CODES.items() if kind.__name__ in by_name}
    assert {kind.__name__ for kind, code in CODES.items() if code != rest} <= set(by_name)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_shows_help_and_refuses_what_it_does_not_know(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert splash(monkeypatch, *words, "--help") == Exit.DONE
    assert splash(monkeypatch, *words, "--no-such-flag") == Exit.USAGE
    assert "--no-such-flag" in capsys.readouterr().err


@pytest.fixture(scope="module")
def server() -> Iterator[Admin]:
    admin = Admin()
    yield admin
    admin.close()


@pytest.mark.parametrize("kind", [kind for kind in CODES if kind not in NEVER_ANSWERED])
@pytest.mark.parametrize("command", CALLS)
def test_a_failure_behind_the_admin_port_has_the_code_that_it_has_here(
    command: str, kind: type[errors.SplashError], server: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPLASH_ADMIN", server.url)
    error = kind("needs 5 slots, 2 are free")
    server.answers[CALLS[command]] = (status_of(error), error_object(error))
    assert splash(monkeypatch, *command.split()) == CODES[kind]


@pytest.mark.parametrize("kind", CODES)
def test_a_failure_of_the_command_itself_has_its_code_and_is_shown(
    kind: type[errors.SplashError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: Any) -> None:
        raise kind("what and why")

    monkeypatch.setattr(cli, "app", fails)
    assert splash(monkeypatch, "plan") == CODES[kind]
    assert "what and why" in capsys.readouterr().err


def test_an_address_that_the_host_refuses_and_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: Any) -> None:
        raise PermissionError(13, "denied", "/x")

    with monkeypatch.context() as patched:
        patched.setattr(cli, "app", refused)
        assert splash(patched, "plan") == Exit.FAILED

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("services.commands.layout.connect", interrupted)
    assert splash(monkeypatch, "layout", "get") == 130
