"""`splash audit`: every page's owner, lease and writer, what is waited for; exit 1 when anything is held."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from services.admin_client import connect, emit
from services.commands.layout import Admin, Json, KeyFile
from services.exit_codes import Exit

app = typer.Typer()

Pages = Annotated[bool, typer.Option("--pages", help="One line a page, too.")]


@app.command("audit")
def audit(
    admin: Admin = None, admin_key_file: KeyFile = None, pages: Pages = False, json: Json = False
) -> None:
    """Every page: owner, lease, writer; and what is waited for. Exit 1 if anything is held (after a drain).

    Groups that cannot be asked are listed as not asked: exit 1, as nobody knows what they hold.

    Example: `splash audit --pages --json`
    """
    with connect(admin, admin_key_file) as client:
        report = client.get("/admin/audit?pages=1" if pages else "/admin/audit")
    absent = report.get("not_asked", ())
    lines = [_held_line(report, absent)]
    lines += [f"not asked: {entry['phase']:8} {entry['group']}: {entry['cause']}" for entry in absent]
    for group in report["groups"]:
        lines.append(f"{group['phase']:8} {group['group']} {group['layout']} epoch {group['layout_epoch']}")
        lines += [
            f"  rank {rank['rank']}: {rank['slots']} slots, {rank['free']} free, {rank['weights']} weights, "
            f"{rank['kv']} kv, {rank['quarantined']} quarantined, {rank['precopied']} precopied"
            for rank in group["ranks"]
        ]
        lines += [
            f"  lease {lease['lease']}: {lease['state']}, owner {lease['owner']}, "
            f"writer {lease['writer'] or 'none'}, {lease['pages']} pages, {lease['age_s']:.1f} s"
            for lease in group["leases"]
        ]
        lines += [
            f"  push {push['push']}: owner {push['owner']}, into lease {push['lease']}, "
            f"{push['pages']} pages, {push['age_s']:.1f} s"
            for push in group["pushes"]
        ]
        lines += [
            f"  {wait['subject']} waits for {wait['waits_for']}, {wait['age_s']:.1f} s"
            for wait in group.get("waits", ())
        ]
        lines += [_page_line(page) for page in group.get("pages", ())]
    emit(report, as_json=json, text="\n".join(lines))
    raise typer.Exit(Exit.FAILED if report["pages_held"] or absent else Exit.DONE)


def _held_line(report: dict[str, Any], absent: Sequence[dict[str, Any]]) -> str:
    if not absent:
        return f"{report['pages_held']} pages held"
    held = sum(group["pages_held"] for group in report["groups"])
    return f"{held} pages held by groups that answer; {len(absent)} could not be asked"


def _page_line(page: dict[str, Any]) -> str:
    where = ", ".join(f"rank {rank} slot {slot}" for rank, slot in enumerate(page["slots"]) if slot >= 0)
    line = f"  page {page['page']}: {page['state']}, owner {page['owner']}, {page['age_s']:.1f} s, at {where}"
    if page["lease"]:
        line += f", lease {page['lease']} of writer {page['writer'] or 'none'}"
    if page["pushes"]:
        line += f", read by push {', '.join(map(str, page['pushes']))}"
    return line
