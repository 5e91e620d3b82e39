"""`splash policy`: the layout policy of a deployment, through the admin port.

Invariant: what is not valid is said before anything is sent; `check` and `keys` need no deployment at all.
"""

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from services.admin_client import AdminClient, connect, emit
from services.commands.layout import Admin, Json, KeyFile
from splash_core.errors import ConfigError
from splash_core.policy.config import read_policy_file
from splash_core.policy.document import parse_document
from splash_core.policy.in_force import pins_not_allowed
from splash_core.policy.keys import KEYS
from splash_core.policy.reference import key_lines
from splash_core.policy.versions import change_text

app = typer.Typer(no_args_is_help=True, help="See, check, set and compare the layout policy.")

_STDIN = "-"
File = Annotated[str, typer.Argument(help=f"A TOML file; {_STDIN}: standard input.", metavar="FILE")]
Number = Annotated[int, typer.Argument(help="Number of a version.", metavar="VERSION", min=1)]
Expected = Annotated[
    int | None, typer.Option("--expected", min=0, help="Refuse if another version is active by now.")
]


@app.command("get")
def get(
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="An earlier one; default: the active one.")
    ] = None,
    admin: Admin = None,
    admin_key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """The policy document, with who decides by it as comments: what is printed can be edited and set.

    Example: `splash policy get > policy.toml`
    """
    with connect(admin, admin_key_file) as client:
        told = client.get(f"/admin/policy/versions/{version}" if version else "/admin/policy")
    emit(told, as_json=json, text=_document_text(told))


@app.command("set")
def set_policy(
    file: File,
    expected: Expected = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would change, and stop.")] = False,
    admin: Admin = None,
    admin_key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """Make a file the active version; a file that is not valid changes nothing, and you are told why.

    Example: `splash policy set policy.toml --expected 3`
    """
    text = _read(file)
    parse_document(text, source=file)
    query = {"dry_run": "1" if dry_run else "0"}
    if expected is not None:
        query["expected"] = str(expected)
    with connect(admin, admin_key_file) as client:
        answer = client.put_text("/admin/policy", text, query=query)
    emit(answer, as_json=json, text=_edit_text(answer))


@app.command("check")
def check(file: File, json: Json = False) -> None:
    """Whether a file is a valid policy, without a cluster. Exit 2 with the key at fault if it is not.

    Example: `splash policy check policy.toml`
    """
    document = parse_document(_read(file), source=file)
    warnings = pins_not_allowed(document)
    found = {"valid": True, "digest": document.digest, "document": document.to_plain(), "warnings": warnings}
    head = [f"{file} is valid ({document.digest})", *(f"warning: {warning}" for warning in warnings)]
    emit(found, as_json=json, text="\n".join([*head, "", document.to_toml()]).rstrip())


@app.command("diff")
def diff(
    before: Annotated[int | None, typer.Argument(help="Default: the one before.", metavar="[A]")] = None,
    after: Annotated[int | None, typer.Argument(help="Default: the active one.", metavar="[B]")] = None,
    admin: Admin = None,
    admin_key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """What differs between two versions, key by key.

    Example: `splash policy diff 3 5`
    """
    query = [f"{name}={number}" for name, number in (("from", before), ("to", after)) if number is not None]
    with connect(admin, admin_key_file) as client:
        answer = client.get(f"/admin/policy/diff?{'&'.join(query)}".rstrip("?"))
    lines = [f"version {answer['from']['version']} → {answer['to']['version']} ({answer['to']['source']})"]
    emit(answer, as_json=json, text="\n".join([*lines, *_change_lines(answer)]))


@app.command("history")
def history(admin: Admin = None, admin_key_file: KeyFile = None, json: Json = False) -> None:
    """All versions that the router keeps: number, time, digest, who brought it.

    Example: `splash policy history`
    """
    with connect(admin, admin_key_file) as client:
        answer = client.get("/admin/policy/versions")
    lines = [
        f"{version['version']:5}  {_time(version['time'])}  {version['digest']}  {version['source']}"
        for version in answer["versions"]
    ]
    emit(answer, as_json=json, text="\n".join(lines) or "no versions: groups keep their own policy")


@app.command("rollback")
def rollback(
    version: Number,
    expected: Expected = None,
    admin: Admin = None,
    admin_key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """Make an earlier version's document the active one again, as a new version.

    Example: `splash policy rollback 3`
    """
    with connect(admin, admin_key_file) as client:
        answer = _rolled_back(client, version, expected)
    emit(answer, as_json=json, text=_edit_text(answer))


@app.command("keys")
def keys(json: Json = False) -> None:
    """Every key of a section with its default and meaning.

    Example: `splash policy keys`
    """
    emit({name: key.doc for name, key in KEYS.items()}, as_json=json, text="\n".join(key_lines()))


def _rolled_back(client: AdminClient, version: int, expected: int | None) -> dict[str, Any]:
    body: dict[str, Any] = {"version": version}
    if expected is not None:
        body["expected"] = expected
    return client.post("/admin/policy/rollback", body)


def _read(file: str) -> str:
    if file != _STDIN:
        return read_policy_file(file, others=f"{_STDIN} (standard input)")
    try:
        return sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise ConfigError(f"policy file {file}: {cause}; give a TOML file") from None


def _document_text(told: dict[str, Any]) -> str:
    if told["version"] is None:
        return "# no version: groups keep the policy that they were started with"
    lines = [
        f"# version {told['version']} ({told['digest']}) of {_time(told['time'])}, by {told['source']}",
        *(f"# {_group_text(group)}" for group in told.get("groups", ())),
    ]
    if (told.get("file") or {}).get("error"):
        lines.append(f"# the file is not in force: {told['file']['error']}")
    if told.get("canary"):
        lines.append(f"# canary of {told['canary']['group']}: {told['canary']['stage']}")
    lines += [f"# warning: {warning}" for warning in told.get("warnings", ())]
    return "\n".join([*lines, "", told["text"].rstrip()]).rstrip()


def _group_text(group: dict[str, Any]) -> str:
    version = "version unknown" if group["version"] is None else f"version {group['version'] or 'own'}"
    notes = [" trying the canary"] if group["trying"] else []
    notes += [f" pinned to {group['pinned']}"] if group["pinned"] else []
    notes += [f" {group['trouble']}"] if group["trouble"] else []
    return f"{group['phase']:8} {group['group']}: {version}{''.join(f',{note}' for note in notes)}"


def _edit_text(answer: dict[str, Any]) -> str:
    if not answer["changed"]:
        return f"nothing changes: version {answer['version']} says the same"
    head = f"{'would be ' if answer['dry_run'] else ''}version {answer['version']} ({answer['digest']})"
    lines = [head, *_change_lines(answer)]
    lines += [f"warning: {warning}" for warning in answer["warnings"]]
    if not answer["dry_run"]:
        lines += [_group_text(group) for group in answer["groups"]]
    return "\n".join(lines)


def _change_lines(answer: dict[str, Any]) -> list[str]:
    return [f"  {change_text(change)}" for change in answer["changes"]] or ["  nothing differs"]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
