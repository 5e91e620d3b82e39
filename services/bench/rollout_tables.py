"""Tables of a rollout: arms with their makespans, the bound, and what was simulated."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from services.bench.results_tables import markdown_table, milliseconds, number
from services.bench.rollout_rows import NEAR, TARGET, Row, by_arm

_Kinds = Mapping[str, Sequence[Row]]


def rollout_tables(rows: Sequence[Row]) -> str:
    """All of one document."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row["what"], []).append(row)
    parts = [_arms(kinds), *map(_bound, kinds["bound"]), _switches(kinds["arm"])]
    parts += [_simulated(kinds)] if "simulated" in kinds else []
    return "\n".join(part for part in parts if part)


def _arms(kinds: _Kinds) -> str:
    spans, bound = by_arm(kinds["arm"]), kinds["bound"][0]
    means = {arm: statistics.mean(times) for arm, times in spans.items()}

    def mean_of(arm: str, name: str) -> float:
        return statistics.mean(row[name] for row in kinds["arm"] if row["arm"] == arm)

    columns: dict[str, Callable[[Row], str]] = {
        "arm": lambda row: row["arm"],
        "makespan s": lambda row: f"{means[row['arm']]:.2f}",
        "of each run": lambda row: ", ".join(f"{span:.2f}" for span in spans[row["arm"]]),
        "of best": lambda row: f"{means[row['arm']] / means[bound['best']]:.3f}",
        "tokens/s": lambda row: number(mean_of(row["arm"], "tokens_per_s")),
        "ITL p50 / p95 / p99": lambda row: " / ".join(
            milliseconds(mean_of(row["arm"], f"itl_ms_{name}")) for name in ("p50", "p95", "p99")
        ),
        "switches": lambda row: number(mean_of(row["arm"], "executed")),
        "service, others": lambda row: _beside(row["arm"], kinds["arm"]),
        "differing": lambda row: number(sum(r["differing"] for r in kinds["arm"] if r["arm"] == row["arm"])),
    }
    return markdown_table(columns, [{"arm": arm} for arm in spans])


def _beside(arm: str, rows: Sequence[Row]) -> str:
    """CPU seconds of all but the ranks, and of all but the stack and its client."""
    mine = [row["cpu_s"] for row in rows if row["arm"] == arm]
    service = sum(used for one in mine for name, used in one.items() if not _apart(name))
    return f"{service / len(mine):.1f}, {sum(one['others'] for one in mine) / len(mine):.1f}"


def _apart(name: str) -> bool:
    """True for what is no leader, router or client."""
    return name == "others" or name.endswith(" ranks")


def _bound(row: Row) -> str:
    if row["upper"] is None:
        verdict = f"ratio {row['ratio']:.3f}; a single run has no bound"
    else:
        met = "met" if row["met"] else "missed"
        verdict = f"ratio {row['ratio']:.3f}, upper bound {row['upper']:.3f} (at most {TARGET}: {met})"
    each = row["upper_to_best_of_each_run"]
    beside = f"{row['ratio_to_best_of_each_run']:.3f}" + ("" if each is None else f", upper bound {each:.3f}")
    tokens = f"{row['differing']} answers differ" if row["differing"] else "no token differs"
    first = f" ({row['first_difference']})" if row["differing"] else ""
    return (
        f"Policy against {row['best']}, the best fixed layout, over {row['runs']} runs: {verdict}. "
        f"Against the best layout of each run: {beside}. Of all arms {tokens}{first}.\n"
    )


def _switches(arms: Sequence[Row]) -> str:
    lines = [
        f"* run {row['run'] + 1}: "
        + ", ".join(
            f"{one['phase']} {one['from']} → {one['to']} at {one['at_s']:.1f} s ({one['executor']})"
            for one in row["switches"]
        )
        + "\n"
        for row in arms
        if row["switches"]
    ]
    return "Switches that the policy decided:\n\n" + "".join(lines) if lines else ""


def _simulated(kinds: _Kinds) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "arm": lambda row: row["arm"],
        "simulated s": lambda row: f"{row['makespan_s']:.2f}",
        "measured s": lambda row: f"{row['measured_s']:.2f}",
        "error": lambda row: f"{row['error']:+.1%}",
        f"within {NEAR:.0%}": lambda row: "yes" if row["met"] else "no",
        "ITL p50": lambda row: milliseconds(row["itl_ms_p50"]),
        "switches": lambda row: number(row["switches"]),
    }
    profile = kinds["profile"][0]
    told = ", ".join(filter(None, (profile[name] for name in ("name", "source", "date", "note"))))
    return f"Simulated with {told}:\n\n" + markdown_table(columns, kinds["simulated"])
