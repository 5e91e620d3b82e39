"""Tables of a sweep, with the peer's figures beside it; and of a peer, with ours beside it, per GPU."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.bench.alone_tables import alone_table, is_alone
from services.bench.results_tables import (
    CELL_COLUMNS,
    Row,
    cell_name,
    cell_of,
    markdown_table,
    milliseconds,
    number,
    with_reasons,
)

Document = Mapping[str, Any]
Column = Callable[[Row], str]


def sweep_table(document: Document, documents: Sequence[Document]) -> str:
    """What was measured, then what did not fit."""
    if is_alone(document):
        return alone_table(document, documents)
    columns: dict[str, Column] = {
        **CELL_COLUMNS,
        "tokens/s": lambda row: number(row["tokens_per_s"]),
        "step ms": lambda row: milliseconds(row["step_ms_p50"]),
    }
    if any("floor_ms" in row for row in document["rows"]):
        columns |= {"floor": _floor, "of floor": lambda row: f"{row['of_floor']:.0%}" if _has(row) else ""}
    if document["settings"].get("device") == "cuda":
        for peer in (other for other in documents if other["bench"] == "peer"):
            columns |= _peer_columns(peer)
    return with_reasons(columns, document["rows"], cell_name)


def peer_tables(document: Document, documents: Sequence[Document]) -> str:
    """The peer's own figures; then cells that a sweep of ours has too, per GPU."""
    own = markdown_table(
        {
            **CELL_COLUMNS,
            "tokens/s": lambda row: number(row.get("tokens_per_s")),
            "step ms": lambda row: milliseconds(row.get("step_ms_p50")),
            "note": lambda row: row.get("note", ""),
        },
        document["rows"],
    )
    pairs = _pairs(document, documents)
    return own + ("\n" + _per_gpu(document, pairs) if pairs else "")


def _has(row: Row) -> bool:
    return "floor_ms" in row


def _floor(row: Row) -> str:
    if not _has(row):
        return ""
    whole = milliseconds(row["floor_ms"])
    if row["phase"] == "prefill":
        return f"{whole} of {milliseconds(row['total_ms_p50'])}"
    parts = ("floor_weights_ms", "floor_attention_ms", "collectives_ms")
    return f"{whole} = " + " + ".join(milliseconds(row[part]) for part in parts)


def _peer_columns(peer: Document) -> dict[str, Column]:
    """The peer's figure for the same phase, layout, batch and length, and the ratio to it."""
    name = f"{peer['settings']['engine']}, {peer['settings'].get('ranks', '?')} GPUs"
    known = {cell_of(row): row for row in peer["rows"]}

    def figure(row: Row) -> str:
        other = known.get(cell_of(row))
        if other is None:
            return ""
        return (
            number(other["tokens_per_s"]) if row["phase"] == "prefill" else milliseconds(other["step_ms_p50"])
        )

    def ratio(row: Row) -> str:
        other = known.get(cell_of(row))
        if other is None:
            return ""
        key = "tokens_per_s" if row["phase"] == "prefill" else "step_ms_p50"
        return f"{row[key] / other[key]:.2f}"

    return {name: figure, "ratio": ratio}


def _pairs(peer: Document, documents: Sequence[Document]) -> list[Row]:
    """Cells of the peer that a sweep on GPUs has measured, its latest figure of each number of GPUs."""
    ours: dict[tuple[Any, ...], dict[int, Row]] = {}
    sweeps = [
        document
        for document in documents
        if document["bench"] == "sweep"
        and document["settings"].get("device") == "cuda"
        and not is_alone(document)
    ]
    for document in sorted(sweeps, key=lambda document: document["date"]):
        gpus = document["settings"]["ranks"]
        for row in document["rows"]:
            if "reason" not in row:
                ours.setdefault(cell_of(row), {})[gpus] = {**row, "commit": document["commit"]}
    return [
        {"theirs": row, "ours": mine, "gpus": gpus}
        for row in peer["rows"]
        for gpus, mine in sorted(ours.get(cell_of(row), {}).items())
    ]


def _per_gpu(peer: Document, pairs: Sequence[Row]) -> str:
    engine, theirs = peer["settings"]["engine"], peer["settings"]["ranks"]
    gpus = sorted({pair["gpus"] for pair in pairs})
    text = (
        f"**{engine} ran on {theirs} GPUs, ours on {' or '.join(map(str, gpus))}.** Rates are divided by the "
        "number of GPUs. That is not the same work on the same machine: on fewer GPUs each reads more of the "
        "weights in a decode step, and exchanges less.\n\n"
    )
    return text + markdown_table(
        {
            "phase": lambda pair: pair["ours"]["phase"],
            "layout": lambda pair: pair["ours"]["layout"],
            "B": lambda pair: number(pair["ours"]["batch"]),
            "input": lambda pair: number(pair["ours"]["input"]),
            f"{engine}, {theirs} GPUs: step ms": lambda pair: milliseconds(pair["theirs"].get("step_ms_p50")),
            "ours: GPUs, step ms": _ours_step,
            "tokens/s per GPU, peer": lambda pair: number(_rate(pair["theirs"]) / theirs),
            "ours": lambda pair: number(_rate(pair["ours"]) / pair["gpus"]),
            "ratio": lambda p: f"{_rate(p['ours']) / p['gpus'] / (_rate(p['theirs']) / theirs):.2f}",
            "commit": lambda pair: pair["ours"]["commit"],
            "note": lambda pair: pair["theirs"].get("note", ""),
        },
        pairs,
    )


def _ours_step(pair: Row) -> str:
    if pair["ours"]["phase"] == "prefill":
        return str(pair["gpus"])
    return f"{pair['gpus']}, {milliseconds(pair['ours']['step_ms_p50'])}"


def _rate(row: Row) -> float:
    """Tokens per second of a group; a decode step makes one token of each request."""
    if row["phase"] == "decode":
        return row["batch"] / row["step_ms_p50"] * 1e3
    return row["tokens_per_s"]
