"""The demo's report for people: the answer, a table of switches, and a timeline of each phase."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from services.demo.report import DemoReport, SwitchReport
from splash_core.units import format_bytes

_COLOURS = {"TP": "cyan", "CP": "green", "DP": "yellow", "DOP": "magenta"}
_WIDTH = 72


def switch_table(switches: Sequence[SwitchReport]) -> Table:
    """One row a switch."""
    table = Table(title="layout switches under live streams", title_justify="left")
    for column in ("phase", "switch", "mode"):
        table.add_column(column)
    for column in ("exposed", "bytes", "streams"):
        table.add_column(column, justify="right")
    table.add_column("tokens")
    for entry in switches:
        table.add_row(
            entry.phase,
            Text.assemble(
                (entry.source, _COLOURS.get(entry.source, "")),
                " → ",
                (entry.target, _COLOURS.get(entry.target, "")),
            ),
            entry.mode,
            f"{entry.exposed_ms:.1f} ms",
            format_bytes(entry.num_bytes),
            str(entry.streams),
            Text("equal", "green") if entry.tokens_equal else Text("DIFFER", "bold red"),
        )
    return table


def timeline(switches: Sequence[SwitchReport], phase: str, *, width: int = _WIDTH) -> Text:
    """The phase's layouts over time: one coloured stretch a layout, as long as it lasted."""
    entries = [entry for entry in switches if entry.phase == phase]
    if not entries:
        return Text(f"{phase:8} no switches")
    moments = [entry.at_s + entry.took_s for entry in entries]
    end_s = moments[-1] * (1 + 1 / len(moments))
    line = Text(f"{phase:8}")
    edges = [0, *(round(moment / end_s * width) for moment in moments), width]
    layouts = [entries[0].source, *(entry.target for entry in entries)]
    for name, begin, end in zip(layouts, edges, edges[1:], strict=False):
        line.append(name[: end - begin].center(end - begin, "━"), _COLOURS.get(name, ""))
    line.append(f" {end_s:.1f} s")
    return line


def show(report: DemoReport, console: Console) -> None:
    """Print the whole report."""
    console.print(
        Panel(escape(report.answer) or "–", title="What is the capital of France?", title_align="left")
    )
    if report.switches:
        console.print(switch_table(report.switches))
        console.print(Group(*(timeline(report.switches, phase) for phase in ("prefill", "decode"))))
    held = report.audit.get("pages_held", "unknown")
    console.print(
        f"{report.borrowed_pages} borrowed slots held KV pages; pages held after the drain: {held}; "
        f"set-up {report.setup_s:.0f} s, run {report.run_s:.0f} s",
        highlight=False,
    )
    for problem in report.problems:
        console.print(f"✗ {problem}", style="bold red", highlight=False, markup=False)
    if report.ok:
        console.print("✓ every token as without switches", style="bold green")
