"""`splash layout`: see and steer layouts through the admin port."""

import math
from collections.abc import Mapping
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from services.admin_client import AdminClient, connect, emit
from services.exit_codes import Exit
from services.outputs import check_output, replace_text
from splash_core.errors import ConfigError
from splash_core.layout.layout import Layout
from splash_core.policy.bundle import ReplayDifference, replay
from splash_core.settings_base import Output
from splash_core.switch.manifest import SwitchMode
from splash_core.units import format_bytes

_GIVE = "give what `splash layout explain --bundle` wrote"

app = typer.Typer(no_args_is_help=True, help="See and steer layouts.")

Admin = Annotated[str | None, typer.Option("--admin", help="URL of the admin port (SPLASH_ADMIN).")]
KeyFile = Annotated[str | None, typer.Option("--admin-key-file", help="File with the admin key.")]
Json = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout.")]
Target = Annotated[str, typer.Argument(help="prefill, decode, or PHASE/GROUP.", metavar="PHASE[/GROUP]")]
LayoutName = Annotated[str, typer.Argument(help=f"One of {', '.join(Layout)}.", metavar="LAYOUT")]


def split_target(target: str) -> dict[str, str]:
    """`decode` or `decode/decode-1` as the admin API's fields."""
    phase, _, group = target.partition("/")
    if phase not in ("prefill", "decode"):
        raise typer.BadParameter(f"{phase!r} is not a phase; use prefill or decode")
    return {"phase": phase, **({"group": group} if group else {})}


def _seconds(value: float | None) -> float | None:
    # NaN compares false with everything, hence the form of the condition.
    if value is not None and not 0 <= value < math.inf:
        raise typer.BadParameter(f"{value} is not a number of seconds; 0 or more is")
    return value


def _steer(client: AdminClient, target: str, *, as_json: bool, **fields: object) -> None:
    answer = client.post("/admin/layout", {**split_target(target), **fields})
    emit(answer, as_json=as_json, text=_switch_text(answer))


def _switch_text(answer: dict[str, object]) -> str:
    if "to" not in answer:
        return (
            f"{answer.get('group', 'group')}: pinned to {answer['pinned']}"
            if answer.get("pinned")
            else "unpinned"
        )
    size, ahead = (format_bytes(float(str(answer.get(name, 0)))) for name in ("bytes", "precopied_bytes"))
    moved = f"{size} moved after {ahead} copied ahead" if answer.get("precopied_bytes") else f"{size} moved"
    text = (
        f"{answer['group']}: {answer['from']} → {answer['to']} ({answer.get('mode') or 'no move'}), epoch "
        f"{answer['layout_epoch']}, {moved}, {float(str(answer.get('exposed_ms', 0))):.1f} ms exposed"
    )
    return f"{text}\nnot precopied: {answer['fallback']}" if answer.get("fallback") else text


@app.command("get")
def get(admin: Admin = None, admin_key_file: KeyFile = None, json: Json = False) -> None:
    """Each group's layout, and which layouts are feasible or why not.

    Example: `splash layout get`
    """
    with connect(admin, admin_key_file) as client:
        layouts = client.get("/admin/layouts")
        cluster = client.get("/admin/cluster")
    lines = [_group_text(group) for group in cluster["groups"]]
    emit({"groups": cluster["groups"], "layouts": layouts}, as_json=json, text="\n".join(lines))


def _group_text(group: Mapping[str, Any]) -> str:
    text = (
        f"{group['phase']:8} {group['group']:12} {group['layout']:5} "
        f"epoch {group['layout_epoch']}  {group['state']}"
    )
    text += f", pinned to {group['pinned']}" if group.get("pinned") else ""
    text += f"\n         out: {group['cause']}" if group.get("cause") else ""
    return f"{text}\n         probes: {group['canary_alarm']}" if group.get("canary_alarm") else text


@app.command("set")
def set_layout(
    target: Target,
    layout: LayoutName,
    mode: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(SwitchMode)}; default: the scheduler's choice."),
    ] = None,
    hold_s: Annotated[
        float | None,
        typer.Option(
            help="Seconds that the policy stays off afterwards; default: the policy's hold_s.",
            callback=_seconds,
        ),
    ] = None,
    admin: Admin = None,
    admin_key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """Switch a group now and hold the policy off for a while.

    Example: `splash layout set decode DOP --mode overlapped`
    """
    fields: dict[str, object] = {"layout": layout.upper()}
    if hold_s is not None:
        fields["hold_s"] = hold_s
    if mode is not None:
        fields["mode"] = mode
    with connect(admin, admin_key_file) as client:
        _steer(client, target, as_json=json, **fields)


@app.command("pin")
def pin(
    target: Target,
    layout: LayoutName,
    admin: Admin = None,
    admin_key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """Hold a group in a layout until unpinned.

    Example: `splash layout pin prefill TP`
    """
    with connect(admin, admin_key_file) as client:
        answer = client.post("/admin/layout/pin", {**split_target(target), "layout": layout.upper()})
    emit(answer, as_json=json, text=_switch_text(answer))


@app.command("unpin")
def unpin(target: Target, admin: Admin = None, admin_key_file: KeyFile = None, json: Json = False) -> None:
    """Give a pinned group back to its policy.

    Example: `splash layout unpin prefill`
    """
    with connect(admin, admin_key_file) as client:
        answer = client.post("/admin/layout/unpin", split_target(target))
    emit(answer, as_json=json, text=_switch_text(answer))


@app.command("explain")
def explain(
    last: Annotated[int, typer.Option(min=1, help="How many records.")] = 5,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write what the policies saw and concluded into this file, to be replayed."),
    ] = None,
    admin: Admin = None,
    admin_key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """Why the policy switched or held: the newest decision records.

    Example: `splash layout explain --last 3`
    """
    if bundle is not None:
        check_output(Output.FILE, bundle, flag="--bundle")
        with connect(admin, admin_key_file) as client:
            answer = client.get(f"/admin/decisions/bundle?last={last}")
        _write_bundle(bundle, answer, as_json=json)
        return
    with connect(admin, admin_key_file) as client:
        records = client.get_list(f"/admin/decisions?last={last}")
    lines: list[str] = []
    for record in records:
        times = ", ".join(
            f"{name} {value:.1f} ms" for name, value in (record.get("predicted_ms") or {}).items()
        )
        way = f"{record['from'] or '–'} → {record['to'] or '–'}"
        lines.append(
            f"{record['phase'] or '–':8} {record['verdict']:7} {way}  {record['reason']}"
            f"\n         predicted by {_profile(record)}: {times or 'nothing'}"
        )
    emit(records, as_json=json, text="\n".join(lines) or "no decisions yet")


@app.command("replay")
def replay_command(
    file: Annotated[
        Path, typer.Argument(help="What `splash layout explain --bundle` wrote.", metavar="FILE")
    ],
    json: Json = False,
) -> None:
    """Let the policy decide again on what a bundle holds; exit code 1 where anything differs.

    Example: `splash layout replay decisions.json`
    """
    replayed, differences = replay_file(file)
    report = {"evaluations": replayed, "differences": [str(difference) for difference in differences]}
    text = "\n".join(report["differences"]) or f"{replayed} evaluations replayed, bit for bit the same"
    emit(report, as_json=json, text=text)
    if differences:
        raise typer.Exit(Exit.FAILED)


def replay_file(file: Path) -> tuple[int, list[ReplayDifference]]:
    """Replay every group's bundle of a file.

    Raises:
        ConfigError: the file cannot be read, or holds no bundles.
    """
    try:
        document: object = loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"bundle {file}: {error}; {_GIVE}") from error
    groups = cast("dict[str, Any]", document).get("groups") if isinstance(document, dict) else None
    if not isinstance(groups, list):
        raise ConfigError(f"bundle {file}: `groups` is missing; {_GIVE}")
    replayed, differences = 0, list[ReplayDifference]()
    for entry in cast("list[dict[str, Any]]", groups):
        count, found = replay(entry.get("bundle"), where=str(entry.get("group", "bundle")))
        replayed += count
        differences += found
    if not replayed:
        raise ConfigError(f"bundle {file}: it holds no evaluation, so there is nothing to compare; {_GIVE}")
    return replayed, differences


def _write_bundle(file: Path, answer: dict[str, Any], *, as_json: bool) -> None:
    count = sum(len(entry["bundle"].get("evaluations", ())) for entry in answer["groups"])
    replace_text(file, dumps(answer) + "\n")
    text = f"{count} evaluations written to {file}"
    emit({"file": str(file), "evaluations": count}, as_json=as_json, text=text)


def _profile(record: Mapping[str, Any]) -> str:
    """Whose figures a prediction stands on."""
    return (record.get("inputs") or {}).get("profile", "an unknown profile")
