"""`splash policy`: what it sends, what it prints, and what works without a cluster."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli import main
from splash_core.errors import ConfigError
from splash_core.policy.config import load_document
from splash_core.policy.document import parse_document
from splash_core.policy.reference import key_lines
from tests.support.admin_port import Admin

PAGE = Path(__file__).parents[2] / "docs" / "policy.md"
VERSION: dict[str, Any] = {"version": 3, "digest": "abc", "source": "admin API", "time": 86_400.0}
GROUP: dict[str, Any] = {"group": "decode-0", "phase": "decode", "version": 3, "digest": "abc"}
GROUP |= {"trying": False, "pinned": None, "trouble": None}
EDIT: dict[str, Any] = VERSION | {
    "changed": True,
    "dry_run": False,
    "changes": [{"key": "all.margin", "before": None, "after": 0.2}],
    "warnings": ["group.x: no group is called 'x' so far"],
    "groups": [GROUP],
}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    server = Admin()
    monkeypatch.setenv("SPLASH_ADMIN", server.url)
    monkeypatch.delenv("SPLASH_ADMIN_KEY", raising=False)
    yield server
    server.close()


def _splash(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["splash", "policy", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_set_sends_the_text_as_it_is(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[all]\nmargin = 0.2 # ten")
    admin.answers["PUT /admin/policy?dry_run=0&expected=2"] = (200, EDIT)
    assert _splash(monkeypatch, "set", str(path), "--expected", "2") == 0
    assert admin.asked[0][2] == path.read_text()
    text = capsys.readouterr().out
    assert "version 3 (abc)" in text
    assert "all.margin: – → 0.2" in text
    assert "decode-0: version 3" in text
    assert "warning: group.x" in text
    admin.answers["PUT /admin/policy?dry_run=1"] = (200, EDIT | {"dry_run": True})
    monkeypatch.setattr("sys.stdin", io.StringIO("[all]\nmargin = 0.2"))
    assert _splash(monkeypatch, "set", "-", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True
    admin.answers["PUT /admin/policy?dry_run=0"] = (200, EDIT | {"changed": False})
    assert _splash(monkeypatch, "set", str(path)) == 0
    assert "nothing changes" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["set", "check"])
def test_a_file_that_is_not_valid_is_told_before_anything_is_sent(
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[all]\nmargn = 0.2")
    assert _splash(monkeypatch, command, str(path)) == 2
    assert "all.margn: unknown key" in capsys.readouterr().err
    assert _splash(monkeypatch, command, str(tmp_path / "none.toml")) == 2
    assert "No such file" in capsys.readouterr().err
    assert admin.asked == []


def test_check_needs_no_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[decode]\npin = 'DP'")
    assert _splash(monkeypatch, "check", str(path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["valid"], found["document"]) == (True, {"decode": {"pin": "DP"}})
    assert _splash(monkeypatch, "check", str(path)) == 0
    assert 'pin = "DP"' in capsys.readouterr().out


@pytest.mark.parametrize("command", ["set", "check"])
def test_a_pipe_that_nobody_may_write_is_refused(
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert _splash(monkeypatch, command, str(tmp_path / "pipe")) == 2
    assert "pipe: not a regular file; give - (standard input) or a TOML file" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="not a regular file; give off, auto or"):
        load_document(str(tmp_path / "pipe"))
    assert admin.asked == []


@pytest.mark.parametrize(
    ("text", "pins"),
    [
        ("[all]\nallowed = ['TP']\npin = 'DP'", ["DP"]),
        (
            "[all]\nallowed = ['TP']\n[decode]\npin = 'DP'",
            ["DP"],
        ),
        (
            "[all]\nallowed = ['TP']\n[group.a]\npin = 'CP'",
            ["CP"],
        ),
        ("[prefill]\nallowed = ['TP']\n[decode]\npin = 'DP'", []),
        ("[all]\nallowed = ['TP', 'DP']\npin = 'DP'", []),
        ("[all]\nallowed = ['TP']\npin = 'none'", []),
        ("[all]\npin = 'DP'", []),
    ],
)
def test_a_pin_outside_of_what_is_allowed_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str,
    pins: list[str],
) -> None:
    warnings = [f"pin: {pin} is not among the allowed TP; the pin holds" for pin in pins]
    path = tmp_path / "p.toml"
    path.write_text(text)
    assert _splash(monkeypatch, "check", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == warnings
    assert _splash(monkeypatch, "check", str(path)) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("warning")] == [
        f"warning: {warning}" for warning in warnings
    ]


def test_get_prints_a_document_that_can_be_set_again(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = parse_document("[all]\nmargin = 0.2")
    told = VERSION | {
        "text": document.to_toml(),
        "file": {"path": "p.toml", "error": "all.margin: must be in [0, 10), got -1"},
        "groups": [GROUP | {"pinned": "TP", "trying": True, "version": 0, "trouble": "is not reachable"}],
        "canary": {"group": "decode-0", "stage": "trying"},
        "warnings": ["group.x: no group is called 'x' so far"],
    }
    admin.answers["GET /admin/policy"] = (200, told)
    assert _splash(monkeypatch, "get") == 0
    text = capsys.readouterr().out
    assert parse_document(text) == document
    assert "# version 3 (abc) of 1970-01-02 00:00:00Z, by admin API" in text
    assert "decode-0: version own, trying the canary, pinned to TP, is not reachable" in text
    assert "# the file is not in force: all.margin" in text
    admin.answers["GET /admin/policy/versions/2"] = (200, VERSION | {"version": 2, "text": ""})
    assert _splash(monkeypatch, "get", "--version", "2") == 0
    assert "# version 2" in capsys.readouterr().out
    admin.answers["GET /admin/policy"] = (200, {"version": None})
    assert _splash(monkeypatch, "get") == 0
    assert "no version" in capsys.readouterr().out


def test_history_diff_and_rollback(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["GET /admin/policy/versions"] = (200, {"versions": [VERSION]})
    assert _splash(monkeypatch, "history") == 0
    assert "3  1970-01-02 00:00:00Z  abc  admin API" in capsys.readouterr().out
    answer = {"from": VERSION, "to": VERSION | {"version": 5}, "changes": EDIT["changes"]}
    for query, arguments in (("", ()), ("?from=3", ("3",)), ("?from=3&to=5", ("3", "5"))):
        admin.answers[f"GET /admin/policy/diff{query}"] = (200, answer)
        assert _splash(monkeypatch, "diff", *arguments) == 0
        assert "version 3 → 5" in capsys.readouterr().out
    admin.answers["POST /admin/policy/rollback"] = (200, EDIT)
    assert _splash(monkeypatch, "rollback", "1", "--expected", "2") == 0
    assert admin.asked[-1][2] == {"version": 1, "expected": 2}
    stale = {"error": {"message": "version 4 is active; get it", "code": "outdated"}}
    admin.answers["POST /admin/policy/rollback"] = (409, stale)
    assert _splash(monkeypatch, "rollback", "1") == 1
    assert "version 4 is active; get it (HTTP 409)" in capsys.readouterr().err
    assert _splash(monkeypatch, "rollback", "0") == 2


@pytest.mark.parametrize("command", ["get", "set", "check", "diff", "history", "rollback", "keys"])
def test_every_command_has_help_with_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert _splash(monkeypatch, command, "--help") == 0
    text = capsys.readouterr().out
    assert f"splash policy {command}" in text
    assert "Example" in text
    assert "--json" in text


def test_the_page_of_the_policy_has_the_table_of_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _splash(monkeypatch, "keys", "--json") == 0
    assert "margin" in json.loads(capsys.readouterr().out)
    assert "\n".join(key_lines()) in PAGE.read_text()


def test_get_says_that_the_version_of_a_silent_group_is_unknown(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = GROUP | {"version": None, "trying": False, "pinned": None, "trouble": "does not answer"}
    admin.answers["GET /admin/policy"] = (200, VERSION | {"text": "", "groups": [silent]})
    assert _splash(monkeypatch, "get") == 0
    assert "decode-0: version unknown, does not answer" in capsys.readouterr().out
