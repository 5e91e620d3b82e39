"""The results page: Markdown made from the JSON documents of a folder, formulas first.

Invariant: the same documents give the same page, whatever the machine, so a test can hold the two together.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from services.bench.results_formulas import FORMULAS, HEAD
from services.bench.results_tables import Row, markdown_table, milliseconds, number
from services.bench.shared_link_rows import shared_link_table
from services.bench.switch_tables import switch_tables
from splash_core.errors import ConfigError
from splash_core.units import format_bytes

Document = Mapping[str, Any]
_HIDDEN = frozenset({"device", "label", "budget_s", "step_timeout_s", "arena_bytes", "staging_bytes", "seed"})
"""Settings that a reader of the tables does not need; the documents have them."""


def write_page(folder: Path) -> Path:
    """Write `README.md` beside the documents; returns its path.

    Raises:
        ConfigError: a document is not one of a benchmark.
    """
    path = folder / "README.md"
    path.write_text(page(read_documents(folder)))
    return path


def read_documents(folder: Path) -> list[Document]:
    """All documents of a folder, by file name.

    Raises:
        ConfigError: the folder does not exist, or a document is not one of a benchmark.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; give the one that holds the JSON documents")
    documents: list[Document] = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        if document.get("bench") not in FORMULAS:
            raise ConfigError(f"{path}: bench is {document.get('bench')!r}, not one of {', '.join(FORMULAS)}")
        documents.append(document | {"file": path.name})
    return documents


def page(documents: Sequence[Document]) -> str:
    """The whole page."""
    present = [bench for bench in FORMULAS if any(document["bench"] == bench for document in documents)]
    parts = [HEAD, *(FORMULAS[bench] + "\n" for bench in FORMULAS), "## Tables\n\n"]
    if not present:
        parts.append("No document yet.\n")
    for bench in present:
        for document in documents:
            if document["bench"] == bench:
                parts.append(section(document, documents))
    return "".join(parts).rstrip("\n") + "\n"


def section(document: Document, documents: Sequence[Document] = ()) -> str:
    """One document: where and with what it was measured, its tables, and what it lacks.

    Args:
        document: of any benchmark.
        documents: all there are, for columns that compare.
    """
    bench = document["bench"]
    settings = {
        name: value
        for name, value in document["settings"].items()
        if name not in _HIDDEN and value not in ("", 0, None)
    }
    lines = [
        f"### {document.get('file', bench).removesuffix('.json')}\n\n",
        f"{document['machine']}; commit {document['commit']}; {document['date']}.\n\n",
        ", ".join(f"{name} {value}" for name, value in settings.items()) + ".\n\n",
        _TABLES[bench](document, documents),
    ]
    if document.get("not_reached"):
        lines.append("\nNot reached in the time given: " + "; ".join(document["not_reached"]) + ".\n")
    return "".join(lines) + "\n"


def _primitives(document: Document, _: Sequence[Document]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "primitive": lambda row: row["primitive"],
        "direction": lambda row: f"{row['from']} → {row['to']}",
        "B": lambda row: number(row["batch"]),
        "S": lambda row: number(row["context"]),
        "bytes": lambda row: format_bytes(row["bytes_per_rank"]),
        "ms": lambda row: milliseconds(row["ms_p50"]),
        "GB/s": lambda row: f"{row['gb_s']:.1f}",
        "best GB/s": lambda row: f"{row['nccl_gb_s']:.1f}, {row['best_way']}",
        "limited": lambda row: f"{row['transfer_gb_s']:.1f}",
        "of best": lambda row: f"{row['of_best']:.0%}",
    }
    return _with_reasons(
        columns, document["rows"], lambda row: f"{row['from']} → {row['to']}, S {row['context']}"
    )


def _switch(document: Document, _: Sequence[Document]) -> str:
    return switch_tables(document["rows"])


def _capacity(document: Document, _: Sequence[Document]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "layout": lambda row: row["layout"],
        "pool": lambda row: number(row["pool_tokens_per_rank"]),
        "distinct": lambda row: number(row["distinct_tokens"]),
        "account": lambda row: number(row["account_tokens"]),
        "distinct / account": lambda row: f"{row['ratio']:.4f}",
        "peak": lambda row: format_bytes(row["peak_bytes"]) if "peak_bytes" in row else "",
        "used": lambda row: format_bytes(row["used_bytes"]) if "used_bytes" in row else "",
        "budget": lambda row: format_bytes(row["budget_bytes"]) if "budget_bytes" in row else "",
    }
    return markdown_table(columns, document["rows"])


def _sweep(document: Document, documents: Sequence[Document]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "phase": lambda row: row["phase"],
        "layout": lambda row: row["layout"],
        "B": lambda row: number(row["batch"]),
        "input": lambda row: number(row["input"]),
        "tokens/s": lambda row: number(row["tokens_per_s"]),
        "step ms": lambda row: milliseconds(row["step_ms_p50"]),
    }
    peers = [other for other in documents if other["bench"] == "peer"]
    if document["settings"].get("device") == "cuda":
        for peer in peers:
            columns |= _peer_columns(peer)
    return _with_reasons(
        columns, document["rows"], lambda r: f"{r['phase']} {r['layout']}, {r['batch']} × {r['input']}"
    )


def _peer_columns(peer: Document) -> dict[str, Callable[[Row], str]]:
    """The peer's figure for the same phase, layout, batch and length, and the ratio to it."""
    name = peer["settings"]["engine"]
    known = {_cell(row): row for row in peer["rows"]}

    def figure(row: Row) -> str:
        other = known.get(_cell(row))
        if other is None:
            return ""
        return (
            number(other["tokens_per_s"]) if row["phase"] == "prefill" else milliseconds(other["step_ms_p50"])
        )

    def ratio(row: Row) -> str:
        other = known.get(_cell(row))
        if other is None:
            return ""
        key = "tokens_per_s" if row["phase"] == "prefill" else "step_ms_p50"
        return f"{row[key] / other[key]:.2f}"

    return {name: figure, "ratio": ratio}


def _cell(row: Row) -> tuple[Any, ...]:
    return row["phase"], row["layout"], row["batch"], row["input"]


def _peer(document: Document, _: Sequence[Document]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "phase": lambda row: row["phase"],
        "layout": lambda row: row["layout"],
        "B": lambda row: number(row["batch"]),
        "input": lambda row: number(row["input"]),
        "tokens/s": lambda row: number(row.get("tokens_per_s")),
        "step ms": lambda row: milliseconds(row.get("step_ms_p50")),
        "note": lambda row: row.get("note", ""),
    }
    return markdown_table(columns, document["rows"])


def _serve(document: Document, _: Sequence[Document]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "what": lambda row: row["what"],
        "layout": lambda row: row["layout"],
        "B": lambda row: number(row["batch"]),
        "tokens/s": lambda row: number(row["tokens_per_s"]),
        "transformers": lambda row: number(row["baseline_tokens_per_s"]),
        "ratio": lambda row: f"{row['ratio']:.2f}",
    }
    return markdown_table(columns, document["rows"])


def _with_reasons(
    columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row], name: Callable[[Row], str]
) -> str:
    """A table of what was measured, and a list of what did not fit."""
    measured = [row for row in rows if "reason" not in row]
    refused = [f"* {name(row)}: {row['reason']}\n" for row in rows if "reason" in row]
    table = markdown_table(columns, measured)
    return table + ("\nDid not fit:\n\n" + "".join(refused) if refused else "")


_TABLES: dict[str, Callable[[Document, Sequence[Document]], str]] = {
    "primitives": _primitives,
    "switch": _switch,
    "capacity": _capacity,
    "sweep": _sweep,
    "serve": _serve,
    "shared-link": lambda document, _: shared_link_table(document["rows"]),
    "peer": _peer,
}
