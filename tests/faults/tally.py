"""Rows of the document: what was played of each row of the matrix, and what did not hold."""

import statistics
from collections.abc import Sequence
from typing import Any

from tests.faults.matrix import Played
from tests.faults.rows import Row


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
            {"number": entry.case.number, "point": entry.case.point, "failure": entry.failure}
            for entry in failures
        ],
    }
