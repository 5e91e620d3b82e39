"""Tables of a sweep of one rank by itself: its own time, what links would add, and a peer's beside both."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.bench.results_tables import (
    CELL_COLUMNS,
    Row,
    cell_name,
    cell_of,
    milliseconds,
    number,
    with_reasons,
)
from services.bench.settings import ALONE

Document = Mapping[str, Any]
_SAME = ("model", "layers", "experts", "dtype", "graphs", "device")
"""What sweeps must share for one's collectives to stand for the other's."""


def is_alone(document: Document) -> bool:
    """True for a document of one rank without the others."""
    return document["settings"].get("backend") == ALONE


def alone_table(document: Document, documents: Sequence[Document]) -> str:
    """What one rank took, with the time of links added (formulas on the page)."""
    links = _links_of(document, documents)
    rows = [_with_links(row, links) for row in document["rows"]]
    columns: dict[str, Callable[[Row], str]] = {
        **CELL_COLUMNS,
        "alone ms": lambda row: milliseconds(row["alone_ms"]),
        "links ms": _links,
        "together": lambda row: milliseconds(row.get("together_ms")),
        "tokens/s": _rate,
    }
    for peer in (other for other in documents if other["bench"] == "peer"):
        if peer["settings"].get("ranks") == document["settings"]["ranks"]:
            columns |= _peer_columns(peer)
    return with_reasons(columns, rows, cell_name)


def _links(row: Row) -> str:
    """Of a decode step with the number of ranks that it was measured on."""
    text = milliseconds(row.get("links_ms"))
    return f"{text}, T = {row['links_ranks']}" if "links_ranks" in row else text


def _links_of(document: Document, documents: Sequence[Document]) -> dict[tuple[str, int], tuple[float, int]]:
    """Time of a decode step's collectives and T, by layout and requests, of the newest sweeps over links."""
    links: dict[tuple[str, int], tuple[float, int]] = {}
    sweeps = [other for other in documents if other["bench"] == "sweep" and not is_alone(other)]
    for other in sorted(sweeps, key=lambda other: other["date"]):
        settings = other["settings"]
        if any(settings.get(key) != document["settings"].get(key) for key in _SAME):
            continue
        for row in other["rows"]:
            if "collectives_ms" in row:
                links[row["layout"], row["batch"]] = row["collectives_ms"], settings["ranks"]
    return links


def _with_links(row: Row, links: Mapping[tuple[str, int], tuple[float, int]]) -> Row:
    if "reason" in row:
        return row
    if row["phase"] == "prefill":
        alone = row["total_ms_p50"]
        return {**row, "alone_ms": alone, "together_ms": alone + row["links_ms"]}
    # What stood in for the collectives is taken out again.
    alone = row["step_ms_p50"] - row["collectives_ms"]
    measured = links.get((row["layout"], row["batch"]))
    if measured is None:
        return {**row, "alone_ms": alone}
    more, ranks = measured
    return {**row, "alone_ms": alone, "links_ms": more, "links_ranks": ranks, "together_ms": alone + more}


def _rate(row: Row) -> str:
    """Of a prefill the prompt's tokens, of a decode step one of each request."""
    if "together_ms" not in row:
        return ""
    tokens = row["batch"] * (row["input"] if row["phase"] == "prefill" else 1)
    return number(tokens / row["together_ms"] * 1e3)


def _peer_columns(peer: Document) -> dict[str, Callable[[Row], str]]:
    known = {cell_of(row): row for row in peer["rows"]}

    def theirs(row: Row) -> float | None:
        other = known.get(cell_of(row))
        if other is None or "together_ms" not in row:
            return None
        if row["phase"] == "prefill":
            return row["batch"] * row["input"] / other["tokens_per_s"] * 1e3
        return other["step_ms_p50"]

    def ratio(row: Row) -> str:
        other = theirs(row)
        return "" if other is None else f"{row['together_ms'] / other:.2f}"

    return {f"{peer['settings']['engine']}: ms": lambda row: milliseconds(theirs(row)), "of its": ratio}
