"""Rows of `splash bench shared-link` beside what they are compared with. Pure arithmetic."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def with_ratios(rows: Sequence[Row], link_bps: float) -> list[Row]:
    """The rows, with these fields where they make sense (docs/results states the same formulas).

    exposed_ratio   exposed p50 / exposed p50 of the same arm and mode on the idle link
    ttft_ratio      p95 of first tokens / that of the same arm without switches
    link_share      bytes per second from A to B / the link's rate
    """
    result: list[Row] = []
    for row in rows:
        idle = _find(rows, row["arbiter"], "idle", row["mode"])
        still = _find(rows, row["arbiter"], "handoffs", "")
        ratios: dict[str, float | None] = {"link_share": round(row["link_bps"][0] / link_bps, 3)}
        if row["condition"] == "both":
            ratios["exposed_ratio"] = _ratio(row, idle, "exposed_ms_p50")
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
