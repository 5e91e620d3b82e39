"""The results page: Markdown made from the JSON documents of a folder, formulas first.

Invariant: the same documents give the same page, whatever the machine, so a test can hold the two together.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from services.bench.agreement_tables import agreement_tables
from services.bench.burst_tables import burst_tables
from services.bench.calibrate_tables import calibrate_tables
from services.bench.document import read_document
from services.bench.results_formulas import FORMULAS, HEAD
from services.bench.results_tables import Row, markdown_table, milliseconds, number, with_reasons
from services.bench.rollout_tables import rollout_tables
from services.bench.shared_link_rows import shared_link_table
from services.bench.sweep_tables import peer_tables, sweep_table
from services.bench.switch_tables import switch_tables
from services.outputs import replace_text
from splash_core.errors import ConfigError
from splash_core.units import format_bytes

Document = Mapping[str, Any]
_HIDDEN = frozenset(
    {"checkpoint", "device", "label", "budget_s", "step_timeout_s", "arena_bytes", "staging_bytes", "seed"}
)
"""Settings that a reader of the tables does not need; the documents have them."""


def write_page(folder: Path) -> Path:
    """Write `README.md` beside the documents; returns its path.

    Raises:
        ConfigError: a document is not one of a benchmark.
    """
    path = folder / "README.md"
    replace_text(path, page(read_documents(folder)))
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
        document = read_document(path, where=str(path), command="splash bench")
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
        "of limited": lambda row: f"{row['gb_s'] / row['transfer_gb_s']:.0%}",
    }
    if any("read_ms" in row for row in document["rows"]):
        columns["chunks"] = lambda row: number(row.get("chunks"))
        columns["read + write"] = _stages
    return with_reasons(
        columns, document["rows"], lambda row: f"{row['from']} → {row['to']}, S {row['context']}"
    )


def _stages(row: Row) -> str:
    if "read_ms" not in row:
        return ""
    return f"{milliseconds(row['read_ms'])} + {milliseconds(row['write_ms'])}"


def _switch(document: Document, _: Sequence[Document]) -> str:
    return switch_tables(document["rows"])


def _agreement(document: Document, _: Sequence[Document]) -> str:
    return agreement_tables(document["rows"])


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
    if any("graph_bytes" in row for row in document["rows"]):
        columns["recorded steps"] = _recorded
    return markdown_table(columns, document["rows"])


def _recorded(row: Row) -> str:
    if "graph_bytes" not in row:
        return ""
    sizes = row["graph_bytes"]
    parts = ", ".join(f"{rows} rows {format_bytes(size)}" for rows, size in sizes.items())
    whole = format_bytes(sum(sizes.values()))
    return f"{whole} ({parts}), {row['record_s']:.1f} s, of {format_bytes(row['graph_budget_bytes'])} for all"


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


def _handoff(document: Document, _: Sequence[Document]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "transport": lambda row: row["transport"],
        "bytes": lambda row: format_bytes(row["bytes"]),
        "page": lambda row: format_bytes(row["page_bytes"]),
        "GB/s": lambda row: f"{row['gb_s_p50']:.2f}",
        "reference": lambda row: row["reference"],
        "its GB/s": lambda row: f"{row['reference_gb_s_p50']:.2f}",
        "of reference": lambda row: f"{row['ratio_p50']:.0%}",
        "lowest, highest": lambda row: f"{min(row['ratios']):.0%}, {max(row['ratios']):.0%}",
        "pairs": lambda row: number(row["pairs"]),
    }
    return markdown_table(columns, document["rows"])


def _faults(document: Document, _: Sequence[Document]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "transport": lambda row: row["transport"],
        "fault": lambda row: row["what"],
        "points": lambda row: number(row["points"]),
        "repetitions": lambda row: number(row["repetitions"]),
        "held": lambda row: number(row["held"]),
        "p50 s": lambda row: f"{row['seconds_p50']:.1f}",
        "longest s": lambda row: f"{row['seconds_max']:.1f}",
    }
    failed = [
        f"* {row['transport']}, {row['fault']} {lost['number']} ({lost['point']}): {lost['failure']}\n"
        for row in document["rows"]
        for lost in row["failures"]
    ]
    table = markdown_table(columns, document["rows"])
    return table + ("\nDid not hold:\n\n" + "".join(failed) if failed else "")


_TABLES: dict[str, Callable[[Document, Sequence[Document]], str]] = {
    "primitives": _primitives,
    "switch": _switch,
    "capacity": _capacity,
    "sweep": sweep_table,
    "agreement": _agreement,
    "serve": _serve,
    "rollout": lambda document, _: rollout_tables(document["rows"]),
    "burst": lambda document, _: burst_tables(document["rows"]),
    "handoff": _handoff,
    "faults": _faults,
    "peer": peer_tables,
    "calibrate": lambda document, _: calibrate_tables(document),
    "shared-link": lambda document, _: shared_link_table(document["rows"]),
}
