"""`splash canary`: do probes still get the answers that they got at first; exit 1 while there is an alarm."""

from typing import Any

import typer

from services.admin_client import connect, emit
from services.commands.layout import Admin, Json, KeyFile
from services.exit_codes import Exit
from splash_core.leader.fingerprint import short_fingerprint

app = typer.Typer(no_args_is_help=True, help="Whether fixed prompts are still answered as at first.")


@app.command("get")
def get(admin: Admin = None, admin_key_file: KeyFile = None, json: Json = False) -> None:
    """Each pair's reference, last check and alarm; exit 1 if there is an alarm.

    Example: `splash canary get`
    """
    with connect(admin, admin_key_file) as client:
        told = client.get("/admin/canary")
    emit(told, as_json=json, text=probes_text(told))
    raise typer.Exit(Exit.FAILED if told["alarms"] else Exit.DONE)


@app.command("reset")
def reset(admin: Admin = None, admin_key_file: KeyFile = None, json: Json = False) -> None:
    """Forget references and alarms: what is said next counts as right. Pins stay; see `splash layout unpin`.

    Example: `splash canary reset`
    """
    with connect(admin, admin_key_file) as client:
        told = client.post("/admin/canary/reset", {})
    emit(told, as_json=json, text="references and alarms forgotten")


def probes_text(told: dict[str, Any]) -> str:
    """For people."""
    if not told["every_s"]:
        return "off: the router was started with --canary-every-s 0"
    lines = [f"{group['group']} is out: {group['reason']}" for group in told.get("out", ())]
    for pair in told["pairs"]:
        lines.append(
            f"{pair['prefill']} + {pair['decode']}: {pair['checks']} checks, {pair['drifts']} drifts"
        )
        if pair["reference"] is not None:
            lines.append(f"  reference{_of(pair['reference'])}: {_groups(pair['reference'])}")
        if pair.get("reference_left") is not None:
            lines.append(f"  {pair['reference_left']}")
        if pair["last"] is not None:
            lines.append(f"  last: {_last(pair['last'])}")
        if pair["waits_for"] is not None:
            lines.append(f"  waits for {pair['waits_s']:.0f} s: {pair['waits_for']}")
        if pair["alarm"] is not None:
            lines.append(f"  ALARM: {pair['alarm']['reason']}")
            lines += [f"    {group['reason']}" for group in pair["alarm"]["groups"]]
    return "\n".join(lines) or "no pair of groups has been asked yet"


def _of(reference: dict[str, Any]) -> str:
    """Of which weights."""
    return f" (fingerprint {short_fingerprint(reference['model'])})" if reference["model"] else ""


def _last(last: dict[str, Any]) -> str:
    compared = last["comparison"]
    delta = "no number" if compared["largest_delta"] is None else f"{compared['largest_delta']:.2g}"
    return (
        f"{last['verdict']} after {last['due']}, {_groups(last)}; {compared['tokens']} tokens, largest "
        f"difference {delta} ({compared['largest_tolerated']:g} is tolerated)"
    )


def _groups(told: dict[str, Any]) -> str:
    return ", ".join(
        f"{group['group']} in {group['layout']} (epoch {group['layout_epoch']})" for group in told["groups"]
    )
