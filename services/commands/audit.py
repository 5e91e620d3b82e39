"""`splash audit`: every page's owner, lease and writer; exit 1 when anything is held."""

import typer

from services.admin_client import connect, emit
from services.commands.layout import Admin, Json, KeyFile

app = typer.Typer()


@app.command("audit")
def audit(admin: Admin = None, admin_key_file: KeyFile = None, json: Json = False) -> None:
    """Every page: owner, lease, writer. Exit 1 if anything is held (run it after a drain).

    Example: `splash audit --json`
    """
    with connect(admin, admin_key_file) as client:
        report = client.get("/admin/audit")
    lines = [f"{report['pages_held']} pages held"]
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
    emit(report, as_json=json, text="\n".join(lines))
    raise typer.Exit(1 if report["pages_held"] else 0)
