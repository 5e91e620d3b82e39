"""Tables of bursts: each burst's time and rate by arm, then the policy beside fixed layouts."""

from collections.abc import Callable, Mapping, Sequence

from services.bench.burst_rows import Row, spans_by_arm
from services.bench.results_tables import markdown_table, number


def burst_tables(rows: Sequence[Row]) -> str:
    """All of one document."""
    bursts = [row for row in rows if row["what"] == "burst"]
    parts = [markdown_table(_COLUMNS, bursts), _totals(bursts)]
    parts += [_lead(row) for row in rows if row["what"] == "policy"]
    return "\n".join(parts)


def _resident(phase: str) -> Callable[[Row], str]:
    return lambda row: number(row["resident"].get(phase))


_COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "arm": lambda row: row["arm"],
    "B": lambda row: number(row["batch"]),
    "L_in": lambda row: number(row["input"]),
    "L_out": lambda row: number(row["output"]),
    "run": lambda row: number(row["run"] + 1),
    "T s": lambda row: f"{row['seconds']:.2f}",
    "tokens/s": lambda row: number(row["tokens_per_s"]),
    "last TTFT s": lambda row: f"{row['ttft_s_last']:.2f}",
    "resident, prefill": _resident("prefill"),
    "resident, decode": _resident("decode"),
    "switches": lambda row: number(row["executed"]),
    "differing": lambda row: number(row["differing"]),
}


def _totals(bursts: Sequence[Row]) -> str:
    spans = spans_by_arm(bursts)
    columns: dict[str, Callable[[Row], str]] = {
        "arm": lambda row: row["arm"],
        "all bursts, s, of each run": lambda row: ", ".join(f"{span:.2f}" for span in spans[row["arm"]]),
    }
    return markdown_table(columns, [{"arm": arm} for arm in spans])


def _lead(row: Row) -> str:
    told = [f"over {row['best']}, the best layout in both phases: {_speedup(row, 'best')}"]
    told += [f"over DP: {_speedup(row, 'dp')}"] if "dp_speedup" in row else []
    return f"Speed-up of the policy over {row['runs']} runs, {'; '.join(told)}.\n"


def _speedup(row: Row, name: str) -> str:
    bound = row[f"{name}_speedup_at_least"]
    return f"{row[f'{name}_speedup']:.3f} ×" + ("" if bound is None else f", at least {bound:.3f} ×")
