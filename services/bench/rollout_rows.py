"""What is concluded from a rollout's arms: order, tokens compared, the ratio's bound. Pure arithmetic."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from services.bench.workload import POLICY
from splash_core.simulate.ledger import percentile

Row = Mapping[str, Any]
_Arm = TypeVar("_Arm")

TARGET = 1.05
"""Of the bound of policy / best fixed layout."""
NEAR = 0.15
"""Of simulated / measured makespan - 1, without its sign."""
_T_95 = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
    *(1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697),
)
"""Student's t, 95 % one-sided, by degrees of freedom from 1."""
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def arms_in_order(arms: Sequence[_Arm], run: int) -> list[_Arm]:
    """A row of a Latin square: over as many runs as there are arms, each stands once at every place."""
    first = run % len(arms)
    return [*arms[first:], *arms[:first]]


def first_difference(reference: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> tuple[int, str]:
    """How many requests differ, and where the first one does, in words; empty where none does."""
    differing, where = 0, ""
    for index, (wanted, got) in enumerate(zip(reference, other, strict=True)):
        if list(wanted) == list(got):
            continue
        differing += 1
        if not where:
            place = next(
                (at for at, pair in enumerate(zip(wanted, got, strict=False)) if pair[0] != pair[1]),
                min(len(wanted), len(got)),
            )
            where = f"request {index}, token {place}: {_shown(got, place)} for {_shown(wanted, place)}"
    return differing, where


def upper_bound(logs: Sequence[float]) -> float | None:
    """exp(mean + t · s / √n): a ratio's one-sided 95 % bound from its logarithms; None for a single one."""
    count = len(logs)
    if count < 2:
        return None
    quantile = _T_95[min(count - 1, len(_T_95)) - 1]
    return math.exp(statistics.mean(logs) + quantile * statistics.stdev(logs) / math.sqrt(count))


def gap_fields(gaps_s: Sequence[float]) -> dict[str, float]:
    """Percentiles of the gaps between tokens, ms."""
    return {f"itl_ms_{name}": round(percentile(gaps_s, share) * 1e3, 2) for name, share in _SHARES.items()}


def concluded(rows: Sequence[Row]) -> dict[str, Any]:
    """The row that compares the policy with the best fixed layout, from those of the arms.

    The best is the fixed layout whose mean makespan over the runs is least; pairs are of the same run.
    """
    spans = by_arm(rows)
    fixed = {arm: times for arm, times in spans.items() if arm != POLICY}
    best = min(fixed, key=lambda arm: statistics.mean(fixed[arm]))
    logs = log_ratios(spans[POLICY], fixed[best])
    each = log_ratios(spans[POLICY], [min(times) for times in zip(*fixed.values(), strict=True)])
    bound, differing = upper_bound(logs), sum(row["differing"] for row in rows if row["what"] == "arm")
    return {
        "what": "bound",
        "best": best,
        "runs": len(logs),
        "ratio": _ratio(logs),
        "upper": None if bound is None else round(bound, 4),
        "met": bound is not None and bound <= TARGET and differing == 0,
        "ratio_to_best_of_each_run": _ratio(each),
        "upper_to_best_of_each_run": None if (worst := upper_bound(each)) is None else round(worst, 4),
        "differing": differing,
        "first_difference": next((row["difference"] for row in rows if row.get("difference")), ""),
    }


def by_arm(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Makespans of each arm, by run."""
    spans: dict[str, list[float]] = {}
    for row in sorted((row for row in rows if row["what"] == "arm"), key=lambda row: row["run"]):
        spans.setdefault(row["arm"], []).append(row["makespan_s"])
    return spans


def simulated_row(arm: str, summary: Mapping[str, Any], measured: Sequence[float]) -> dict[str, Any]:
    """One simulated arm beside the mean of its measured makespans."""
    mean = statistics.mean(measured)
    error = summary["makespan_s"] / mean - 1
    return {
        "what": "simulated",
        "arm": arm,
        "makespan_s": round(summary["makespan_s"], 4),
        "measured_s": round(mean, 4),
        "error": round(error, 4),
        "met": abs(error) <= NEAR,
        "itl_ms_p50": round(summary["itl_s"]["p50"] * 1e3, 2),
        "switches": summary["switches"],
    }


def log_ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ln(mine / theirs) of each run."""
    return [math.log(one / other) for one, other in zip(mine, theirs, strict=True)]


def _ratio(logs: Sequence[float]) -> float:
    return round(math.exp(statistics.mean(logs)), 4)


def _shown(tokens: Sequence[str], place: int) -> str:
    return repr(tokens[place]) if place < len(tokens) else "nothing"
