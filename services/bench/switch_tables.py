"""Tables of switches: a line a direction, the modes side by side; one for each batch, length and chunk."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from services.bench.results_tables import Row, markdown_table, milliseconds, number
from splash_core.switch.manifest import SwitchMode
from splash_core.units import format_bytes


def switch_tables(rows: Sequence[Row]) -> str:
    """All tables of one document."""
    parts: list[str] = []
    for cell, members in groupby(rows, key=_cell):
        phase, batch, context, chunk = cell
        parts.append(f"**{phase}, B {batch}, S {context:,}, {chunk:,} rows a step**\n\n")
        parts.append(_table(list(members)) + "\n")
    return "".join(parts)


def _cell(row: Row) -> tuple[Any, ...]:
    return row["phase"], row["batch"], row["context"], row["chunk"]


def _table(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if "reason" not in row]
    modes = list(dict.fromkeys(row["mode"] for row in measured))
    by_direction: dict[tuple[str, str], dict[str, Row]] = {}
    for row in measured:
        by_direction.setdefault((row["from"], row["to"]), {})[row["mode"]] = row
    columns: dict[str, Callable[[Row], str]] = {
        "direction": lambda line: f"{line['any']['from']} → {line['any']['to']}",
        "ready": lambda line: milliseconds(line["any"]["ready_ms_p50"]),
        "layer": lambda line: milliseconds(line["any"]["layer_ms"]),
        "bytes": lambda line: format_bytes(line["any"]["bytes_per_rank"]),
        "reps": lambda line: number(line["any"]["reps"]),
    }
    if any("before_ms_p50" in row for row in measured):
        columns["before"] = lambda line: milliseconds(line["any"]["before_ms_p50"])
    for mode in modes:
        columns |= _mode_columns(mode, [row for row in measured if row["mode"] == mode])
    lines = [modes_of | {"any": next(iter(modes_of.values()))} for modes_of in by_direction.values()]
    reasons = dict.fromkeys(
        f"* {row['from']} → {row['to']}: {row['reason']}\n" for row in rows if "reason" in row
    )
    table = markdown_table(columns, lines) if measured else ""
    return table + ("\nDid not fit:\n\n" + "".join(reasons) if reasons else "")


def _mode_columns(mode: str, rows: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    def cell(text: Callable[[Row], str]) -> Callable[[Row], str]:
        return lambda line: text(line[mode]) if mode in line else ""

    columns = {f"{mode}: exposed": cell(_exposed), f"{mode}: of ready": cell(_of_ready)}
    if mode != SwitchMode.BLOCKING and all("first_wait_ms_p50" in row for row in rows):
        columns[f"{mode}: first + later + interf."] = cell(_parts)
        columns[f"{mode}: transfer"] = cell(lambda row: milliseconds(row["transfer_ms_p50"]))
        columns[f"{mode}: (7)"] = cell(lambda row: milliseconds(row["formula_ms"]))
    if any("ahead_steps" in row for row in rows):
        columns[f"{mode}: ahead"] = cell(_ahead)
    if any("cancelled" in row for row in rows):
        columns[f"{mode}: events"] = cell(_events)
        columns[f"{mode}: copied, invalidated, again"] = cell(_undone)
        columns[f"{mode}: committed"] = cell(_committed)
    return columns


def _exposed(row: Row) -> str:
    # The scheduler may have had no room for the mode asked for.
    asked = SwitchMode.PRECOPIED if "cancelled" in row else row["mode"]
    executed_as = row.get("executed_as", asked)
    note = "" if executed_as == asked else f", as {executed_as}"
    # Where nothing is recorded every step is launched, and there is nothing to note.
    if row.get("replayed") and row.get("switching_launched"):
        note += f", {row['switching_launched']} launched"
    return f"{milliseconds(row['exposed_ms_p50'])} ({milliseconds(row['exposed_ms_p95'])}){note}"


def _of_ready(row: Row) -> str:
    return f"{row['exposed_ms_p50'] / row['ready_ms_p50']:.2%}"


def _parts(row: Row) -> str:
    names = ("first_wait_ms_p50", "later_waits_ms_p50", "interference_ms_p50")
    return " + ".join(milliseconds(row[name]) for name in names)


def _ahead(row: Row) -> str:
    if "ahead_steps" not in row:
        return "nothing"
    size = format_bytes(row["ahead_bytes_per_rank"])
    return f"{size} in {row['ahead_steps']} steps, {row['ahead_slowdown']:+.1%}"


def _events(row: Row) -> str:
    turned_away = f", {row['turned_away']} turned away" if row["turned_away"] else ""
    return (
        f"{row['cancelled']} cancelled, {row['finished']} finished, {row['admitted']} admitted{turned_away}"
    )


def _undone(row: Row) -> str:
    return ", ".join(
        format_bytes(row[name]) for name in ("copied_bytes", "invalidated_bytes", "recopied_bytes")
    )


def _committed(row: Row) -> str:
    why = f": {row['fallback']}" if row["fallback"] else ""
    return f"{row['committed']} of {row['reps']}{why}"
