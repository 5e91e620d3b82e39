"""Rows of `splash bench shared-link` beside what they are compared with. Pure arithmetic."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.bench.results_tables import markdown_table, milliseconds, number
from services.bench.shared_link_stages import STAGES
from splash_core.units import format_bytes

Row = Mapping[str, Any]


def with_ratios(rows: Sequence[Row], link_bps: float) -> list[Row]:
    """The rows, with these fields where they make sense (docs/results states the same formulas).

    exposed_ratio   exposed time per byte moved (median) / that of the same arm and mode on the idle link
    ttft_ratio      p95 of first tokens / that of the same arm without switches
    link_share      bytes per second from A to B / the link's rate
    """
    result: list[Row] = []
    for row in rows:
        idle = _find(rows, row["arbiter"], "idle", row["mode"])
        still = _find(rows, row["arbiter"], "handoffs", "")
        ratios: dict[str, float | None] = {"link_share": round(row["link_bps"][0] / link_bps, 3)}
        if row["condition"] == "both":
            ratios["exposed_ratio"] = _ratio(row, idle, "exposed_ms_per_mb")
            ratios["ttft_ratio"] = _ratio(row, still, "ttft_ms_p95")
        result.append({**row, **ratios})
    return result


def _find(rows: Sequence[Row], arm: str, condition: str, mode: str) -> Row | None:
    wanted = (arm, condition, mode)
    return next((row for row in rows if (row["arbiter"], row["condition"], row["mode"]) == wanted), None)


def _ratio(row: Row, reference: Row | None, name: str) -> float | None:
    if reference is None or not row[name] or not reference[name]:
        return None
    return round(row[name] / reference[name], 3)


def shared_link_table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    columns: dict[str, Callable[[Row], str]] = {
        "arbiter": lambda row: row["arbiter"],
        "condition": lambda row: row["condition"],
        "mode": lambda row: row["mode"],
        "requests": lambda row: number(row["requests"]),
        "TTFT p50": lambda row: milliseconds(row["ttft_ms_p50"]),
        "p95": lambda row: milliseconds(row["ttft_ms_p95"]),
        "of no switch": lambda row: _times(row.get("ttft_ratio")),
        "stages": lambda row: _stages(row["stages_ms"]),
        "met": lambda row: number(row["met_switch"]),
        "their p50": lambda row: milliseconds(row["ttft_ms_p50_met"]),
        "their stages": lambda row: _stages(row["stages_ms_met"]),
        "gap p50 / p95": _gaps,
        "switches": lambda row: number(row["switches"]),
        "exposed p50 (most)": _exposed,
        "per MB": lambda row: milliseconds(row["exposed_ms_per_mb"]),
        "of idle": lambda row: _times(row.get("exposed_ratio")),
        "switch / handoff / ahead": _bytes,
        "of link": lambda row: f"{row['link_share']:.0%}",
    }
    return markdown_table(columns, rows)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _stages(stages: Mapping[str, float]) -> str:
    return " / ".join(f"{stages[name]:,.0f}" for name in STAGES) if stages else ""


def _gaps(row: Row) -> str:
    gaps = (row["gap_ms_p50"], row["gap_ms_p95"])
    return "" if None in gaps else " / ".join(f"{gap:,.0f}" for gap in gaps)


def _exposed(row: Row) -> str:
    if row["exposed_ms_p50"] is None:
        return ""
    return f"{milliseconds(row['exposed_ms_p50'])} ({milliseconds(row['exposed_ms_max'])})"


def _bytes(row: Row) -> str:
    by_class = row["bytes_by_class"]
    return " / ".join(format_bytes(by_class.get(name, 0)) for name in ("switch", "handoff", "precopy"))
