"""Rows of the document: what was played of each row of the matrix, and what did not hold."""

import statistics
from collections.abc import Sequence
from typing import Any

from tests.faults.matrix import Played
from tests.faults.rows import Row

_MOST_CHARACTERS = 400


def rows_of(results: Sequence[tuple[str, Played]], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row a transport and fault, in the order of the matrix; those not played are left out."""
    entries: list[dict[str, Any]] = []
    for transport in dict.fromkeys(transport for transport, _ in results):
        for row in rows:
            mine = [played for at, played in results if at == transport and played.case.row is row]
            if mine:
                entries.append({"transport": transport, "fault": row.name, "what": row.what, **_counts(mine)})
    return entries


def _counts(played: Sequence[Played]) -> dict[str, Any]:
    failures = [entry for entry in played if entry.failure]
    return {
        "points": len({entry.case.point for entry in played}),
        "repetitions": len(played),
        "held": len(played) - len(failures),
        "seconds_p50": round(statistics.median(entry.seconds for entry in played), 2),
        "seconds_max": round(max(entry.seconds for entry in played), 2),
        "failures": [
            {"number": entry.case.number, "point": entry.case.point, "failure": _short(entry.failure)}
            for entry in failures
        ],
    }


def _short(failure: str) -> str:
    """On one line, as much of it as a page bears."""
    return " ".join(failure.split())[:_MOST_CHARACTERS]


def not_reached(
    results: Sequence[tuple[str, Played]], rows: Sequence[Row], transports: Sequence[str], repetitions: int
) -> list[str]:
    """What was asked for and not played."""
    missing: list[str] = []
    for transport in transports:
        for row in rows:
            count = sum(at == transport and played.case.row is row for at, played in results)
            if count < repetitions:
                missing.append(f"{transport} {row.name}: {count} of {repetitions} repetitions")
    return missing
