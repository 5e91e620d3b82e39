"""Tables of a calibration: what it found, how well it predicts, and what it would choose."""

from collections.abc import Mapping
from typing import Any

from services.bench.results_tables import Row, markdown_table, number
from splash_core.cost.accuracy import NEAR
from splash_core.cost.profile import HardwareProfile
from splash_core.cost.theta import Overhead, Part, Rate, constants_of

_UNITS = {"flops": ("GFLOP/s", 1e-9), "bps": ("GB/s", 1e-9), "s": ("µs", 1e6)}
"""By the last part of a constant's name; others have none."""


def calibrate_tables(document: Mapping[str, Any]) -> str:
    """All tables of one document."""
    if "accuracy" not in document:
        return "Nothing was fitted yet.\n"
    accuracy, profile = document["accuracy"], document["profile"]
    held = "Held-out errors and choices are within their limits."
    missed = "Held-out errors or choices are not all within their limits."
    parts = (
        _constants(profile),
        _links(profile),
        _errors(accuracy["groups"]),
        _choices(accuracy["choices"]),
        f"{held if accuracy['holds'] else missed}\n",
        _beside(document["rows"], profile),
        _served(document["rows"], profile),
    )
    return "\n".join(part for part in parts if part)


def _constants(profile: Mapping[str, Any]) -> str:
    rows: list[Row] = []
    for name, constant in constants_of(HardwareProfile).items():
        if isinstance(constant, Rate | Part | Overhead) and name in profile:  # older documents have fewer
            unit, factor = _UNITS.get(name.rpartition("_")[2], ("", 1.0))
            rows.append({"name": constant.shown, "value": f"{_three(profile[name] * factor)} {unit}".strip()})
    return markdown_table({"θ": lambda row: row["name"], "fitted": lambda row: row["value"]}, rows)


def _links(profile: Mapping[str, Any]) -> str:
    rows = [{"kind": kind, **rate} for kind, rates in profile["collectives"].items() for rate in rates]
    return markdown_table(
        {
            "collective": lambda row: row["kind"],
            "up to": lambda row: f"{row['most_bytes'] / 1024:,.0f} KiB" if row["most_bytes"] else "any size",
            "α": lambda row: f"{_three(row['latency_s'] * 1e6)} µs",
            "BW": lambda row: f"{_three(row['bps'] * 1e-9)} GB/s",
        },
        rows,
    )


def _errors(groups: list[Row]) -> str:
    return markdown_table(
        {
            "phase": lambda row: row["phase"],
            "layout": lambda row: row["layout"],
            "steps": lambda row: f"{number(row['steps'])} {'held out' if row['held_out'] else 'fitted'}",
            "error": lambda row: f"{row['error']:.1%}",
            "bias": lambda row: f"{row['bias']:+.1%}",
            "spread": lambda row: f"{row['spread']:.1%}",
            "of limit": lambda row: f"{row['of_limit']:.2f}",
        },
        groups,
    )


def _choices(choices: list[Row]) -> str:
    groups: dict[tuple[str, bool], list[Row]] = {}
    for choice in choices:
        groups.setdefault((choice["phase"], choice["held_out"]), []).append(choice)
    table = markdown_table(
        {
            "phase": lambda row: row["phase"],
            "batches": lambda row: row["batches"],
            f"best or within {NEAR:.0%}": lambda row: row["good"],
            "slowest choice": lambda row: row["worst"],
        },
        [
            {
                "phase": phase,
                "batches": f"{len(mine)} {'held out' if held else 'fitted'}",
                "good": f"{sum(one['slower'] <= NEAR for one in mine) / len(mine):.0%}",
                "worst": f"{max(one['slower'] for one in mine):+.1%}",
            }
            for (phase, held), mine in sorted(groups.items())
        ],
    )
    bad = [
        f"* {one['batch']}: {one['chosen']}, {one['slower']:.1%} slower than {one['best']}\n"
        for one in choices
        if one["held_out"] and one["slower"] > NEAR
    ]
    return table + ("\nHeld-out choices that were not:\n\n" + "".join(bad) if bad else "")


def _beside(rows: list[Row], profile: Mapping[str, Any]) -> str:
    """What transfers slow steps down by, and the pairs that say so; empty where none were measured."""
    beside = [row for row in rows if "beside" in row]
    if not beside:
        return ""
    table = markdown_table(
        {
            "step": lambda row: row["beside"],
            "transfer": lambda row: f"{row['bytes'] / 2**20:,.1f} MiB",
            "alone ms": lambda row: _three(row["alone_ms"]),
            "step ms": lambda row: ", ".join(map(_three, row["plain_ms"])),
            "beside it ms": lambda row: ", ".join(map(_three, row["beside_ms"])),
        },
        beside,
    )
    slowed = _three(profile["interference"])
    return f"A second of transfer that hides slows a step down by {slowed} s.\n\n{table}"


def _served(rows: list[Row], profile: Mapping[str, Any]) -> str:
    """What service adds, and the streams that say so; empty where none were served."""
    served = [row for row in rows if "served" in row]
    if not served:
        return ""
    step, token = (_three(profile[name] * 1e3) for name in ("served_step_s", "served_token_s"))
    table = markdown_table(
        {
            "streams": lambda row: number(row["streams"]),
            "layout": lambda row: row["served"],
            "gap ms": lambda row: ", ".join(map(_three, row["ms"])),
        },
        sorted(served, key=lambda row: row["streams"]),
    )
    errors = {name: error for name, error in profile["provenance"]["residuals"].items() if "served" in name}
    told = ", ".join(f"{name.partition('/')[2]} {error:.1%}" for name, error in errors.items())
    return f"Service adds {step} ms a step and {token} ms a token; errors with it: {told}.\n\n{table}"


def _three(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
