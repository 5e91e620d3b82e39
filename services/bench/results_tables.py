"""Markdown tables and readable figures."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

Row = Mapping[str, Any]


def markdown_table(columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]) -> str:
    """A table with a line a row.

    Args:
        columns: heading → what stands in the row's cell.
        rows: of a document.
    """
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row) for cell in columns.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    """A count or a rate: `1,350,208`, `14,300`, `61.5`; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.1f}"


def milliseconds(value: float | None) -> str:
    """A time with three digits or more: `0.302`, `12.3`, `1,962`; empty for None."""
    if value is None:
        return ""
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def with_reasons(
    columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row], name: Callable[[Row], str]
) -> str:
    """A table of what was measured, and a list of what did not fit.

    Args:
        columns: as in `markdown_table`.
        rows: of a document.
        name: of a row that has a reason instead of figures.
    """
    rows = list(rows)
    measured = [row for row in rows if "reason" not in row]
    refused = [f"* {name(row)}: {row['reason']}\n" for row in rows if "reason" in row]
    table = markdown_table(columns, measured)
    return table + ("\nDid not fit:\n\n" + "".join(refused) if refused else "")


def cell_of(row: Row) -> tuple[Any, ...]:
    """What two sweeps must have in common for their figures to stand beside each other."""
    return row["phase"], row["layout"], row["batch"], row["input"]


def cell_name(row: Row) -> str:
    """A cell in words."""
    phase, layout, batch, length = cell_of(row)
    return f"{phase} {layout}, {batch} × {length}"


CELL_COLUMNS: Mapping[str, Callable[[Row], str]] = MappingProxyType(
    {
        "phase": lambda row: row["phase"],
        "layout": lambda row: row["layout"],
        "B": lambda row: number(row["batch"]),
        "input": lambda row: number(row["input"]),
    }
)
"""The first columns of a table of cells."""
