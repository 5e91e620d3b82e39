"""`splash layout`: see and steer layouts through the admin port."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from services.admin_client import AdminClient, connect, emit
from splash_core.layout.layout import Layout
from splash_core.switch.manifest import SwitchMode
from splash_core.units import format_bytes

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
    lines = [
        f"{group['phase']:8} {group['group']:12} {group['layout']:5} "
        f"epoch {group['layout_epoch']}  {group['state']}"
        for group in cluster["groups"]
    ]
    emit({"groups": cluster["groups"], "layouts": layouts}, as_json=json, text="\n".join(lines))


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
    admin: Admin = None,
    admin_key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """Why the policy switched or held: the newest decision records.

    Example: `splash layout explain --last 3`
    """
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


def _profile(record: Mapping[str, Any]) -> str:
    """Whose figures a prediction stands on."""
    return (record.get("inputs") or {}).get("profile", "an unknown profile")
